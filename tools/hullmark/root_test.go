package main

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/tooltest"
)

// rootKeyFile makes a root's key by OpenSSL, which a command signs with, and says where its public half is.
func rootKeyFile(t *testing.T) (public, signer string) {
	t.Helper()
	dir := t.TempDir()
	key, public := filepath.Join(dir, "root.key"), filepath.Join(dir, "root.pub")
	openssl(t, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
	openssl(t, "pkey", "-in", key, "-pubout", "-out", public)
	return public, "openssl dgst -sha256 -sign " + key
}

// newRemoteSite is a site whose root's key is behind a command.
func newRemoteSite(t *testing.T) (s *site, signer string) {
	t.Helper()
	public, signer := rootKeyFile(t)
	root, err := readRoot(t.Context(), public, signer, "both", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.NewUnder(root)
	if err != nil {
		t.Fatal(err)
	}
	return newSiteOf(t, c), signer
}

// with runs a verb with the site's cluster file.
func (s *site) with(t *testing.T, verb string, more ...string) (int, string) {
	t.Helper()
	args := append(strings.Fields(verb), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	return hullmarkCLI(t, append(args, more...)...)
}

// rootOf is the root of a public key in PEM.
func rootOf(t *testing.T, public string) hullmark.ClusterRoot {
	t.Helper()
	key, err := readPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return hullmark.ClusterRootOf(spki)
}

func TestClusterNewUnderARootElsewhere(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write(t, path("passphrase"), []byte("correct horse\n"))
	public, signer := rootKeyFile(t)
	_, other := rootKeyFile(t)
	openssl(t, "genrsa", "-out", path("rsa"), "2048")
	openssl(t, "pkey", "-in", path("rsa"), "-pubout", "-out", path("rsa.pub"))
	args := []string{"cluster", "new", path("new"), "--passphrase-file", path("passphrase"), "--node-config", path("node.json")}
	for name, c := range map[string]struct {
		code int
		says string
		more []string
	}{
		"a key without a signer": {exitUsage, "needs both --root-public-key and --root-signer", []string{"--root-public-key", public}},
		"a signer without a key": {exitUsage, "needs both --root-public-key and --root-signer", []string{"--root-signer", signer}},
		"no public key":          {exitFailed, "want a public key", []string{"--root-public-key", path("rsa"), "--root-signer", signer}},
		"another kind of key":    {exitFailed, "P-256", []string{"--root-public-key", path("rsa.pub"), "--root-signer", signer}},
		"another key":            {exitFailed, "not the root key's over what was asked", []string{"--root-public-key", public, "--root-signer", other}},
		"a signer that fails":    {exitFailed, "exit status 3; nothing was signed", []string{"--root-public-key", public, "--root-signer", "exit 3"}},
	} {
		code, output := hullmarkCLI(t, append(args[:len(args):len(args)], c.more...)...)
		wantExit(t, code, c.code, name+": "+output, c.says)
		for _, left := range []string{"new", "node.json"} {
			if _, err := os.Stat(path(left)); err == nil {
				t.Errorf("%s: %s was made", name, left)
			}
		}
	}
	code, output := hullmarkCLI(t, append(args[:len(args):len(args)], "--root-public-key", public, "--root-signer", signer)...)
	wantExit(t, code, 0, output, "cluster root "+rootOf(t, public).String())
	config, err := os.ReadFile(path("node.json"))
	if err != nil || !strings.Contains(string(config), rootOf(t, public).String()) {
		t.Errorf("the node configuration is %s, %v", config, err)
	}
	file, err := cluster.Open(path("new"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil || !file.Cluster.RootElsewhere() || file.Cluster.Root.Key != nil || file.Cluster.ID() != rootOf(t, public) {
		t.Errorf("the cluster file is of another root, or has its key: %v", err)
	}

	// The variable alone names no root, which is said.
	t.Setenv(rootSignerVariable, signer)
	code, output = hullmarkCLI(t, "cluster", "new", path("own"), "--passphrase-file", path("passphrase"))
	wantExit(t, code, 0, output, "does not sign for this cluster")
	if file, err = cluster.Open(path("own"), hullmark.NewSecret([]byte("correct horse"))); err != nil || file.Cluster.RootElsewhere() {
		t.Errorf("the cluster file has not its root's key: %v", err)
	}
}

// A cluster begins and is changed under a root whose key is behind a command, which is asked as seldom as can be.
func TestRootElsewhereBeginsACluster(t *testing.T) {
	s, signer := newRemoteSite(t)
	member := []string{"--ekid", strings.Repeat("11", 32), "--role", "worker", "--name", "worker-1"}
	code, output := s.with(t, "policy add member", member...)
	wantExit(t, code, exitUsage, output, "--root-signer")
	code, output = s.init(t)
	wantExit(t, code, exitUsage, output, "--root-signer")
	code, output = s.with(t, "policy add member", append(member, "--root-signer", signer)...)
	wantExit(t, code, 0, output, "version 1")
	code, output = s.with(t, "policy show")
	wantExit(t, code, 0, output, "worker-1")

	t.Setenv(rootSignerVariable, "echo >>"+s.path("asked")+"; "+signer)
	code, output = s.init(t)
	wantExit(t, code, 0, output, "control-plane-1 is Ready")
	asked, err := os.ReadFile(s.path("asked"))
	if err != nil || bytes.Count(asked, []byte("\n")) != 2 {
		t.Errorf("init asked %d times, want once for its policy and once for the operator's certificate; %v", bytes.Count(asked, []byte("\n")), err)
	}
	code, output = s.with(t, "policy revoke-operators")
	wantExit(t, code, 0, output, "version 3")

	// The variable is for this cluster's file; a flag that is of no use is said.
	own := newSite(t)
	code, output = own.with(t, "policy add member", member...)
	wantExit(t, code, 0, output, "version 1")
	code, output = own.with(t, "policy revoke-operators", "--root-signer", signer)
	wantExit(t, code, exitUsage, output, "no command signs for it")
}

// Whatever a command answers but the root's signature is refused, and the cluster file stays as it is.
func TestRootSignerIsNotBelieved(t *testing.T) {
	s, signer := newRemoteSite(t)
	_, other := rootKeyFile(t)
	before, err := os.ReadFile(s.path("cluster"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ signer, says string }{
		"it dies":                {"head -c 20; kill -9 $$", "signal: killed; nothing was signed"},
		"it fails":               {"echo the token is gone >&2; exit 3", "exit status 3; nothing was signed"},
		"its own words":          {"echo the token is gone >&2; exit 3", "the token is gone"},
		"it is not there":        {"/nonexistent/signer", "exit status 127"},
		"it is silent":           {"true", "answered with nothing"},
		"it is loud":             {"yes", "more than 65536 bytes"},
		"it is another key's":    {other, "not the root key's over what was asked"},
		"it signs a digest":      {"openssl dgst -sha256 -binary | " + signer, "not the root key's over what was asked"},
		"it signs a part":        {"head -c 100 | " + signer, "not the root key's over what was asked"},
		"it signs something":     {"echo something | " + signer, "not the root key's over what was asked"},
		"it encodes":             {signer + " | base64", "and not encoded further"},
		"it says more":           {signer + "; echo done", "not the root key's over what was asked"},
		"it signs, and fails":    {signer + "; exit 1", "exit status 1; nothing was signed"},
		"it answers its message": {"cat", "not the root key's over what was asked"},
	} {
		code, output := s.with(t, "policy add member", "--ekid", strings.Repeat("11", 32), "--role", "worker", "--name", "worker-1", "--root-signer", c.signer)
		wantExit(t, code, exitFailed, name+": "+output, c.says)
	}
	if after, err := os.ReadFile(s.path("cluster")); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the cluster file changed: %v", err)
	}
	if s.init(t, "--root-signer", "true"); s.node.Ticket() != nil {
		t.Error("the node was given a ticket")
	}
}

// A root's key that never leaves a PKCS #11 token begins a cluster, and signs its policy.
func TestRootInToken(t *testing.T) {
	dir := t.TempDir()
	token := tooltest.NewToken(t, dir, "EC:prime256v1")
	public := filepath.Join(dir, "root.pub")
	token.Public(t, public)
	raw := "openssl dgst -sha256 -binary | " + token.Signer("ECDSA")
	root, err := readRoot(t.Context(), public, raw, "both", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.NewUnder(root)
	if err != nil {
		t.Fatal(err)
	}
	s := newSiteOf(t, c)
	code, output := s.init(t, "--root-signer", raw)
	wantExit(t, code, 0, output, "control-plane-1 is Ready")
	code, output = s.with(t, "policy revoke-operators", "--root-signer", raw+" --signature-format openssl")
	wantExit(t, code, 0, output, "certificates that were made until now are refused")
	if s.open(t).ID() != rootOf(t, public) {
		t.Error("the cluster's root is not the token's key")
	}
}
