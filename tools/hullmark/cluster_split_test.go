package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/measurements"
)

// holders are people with a share each, whose passphrases are in files.
func (s *site) holders(t *testing.T, names ...string) (paths, passphrases []string) {
	t.Helper()
	for _, name := range names {
		s.write(t, name+".passphrase", []byte("of "+name+"\n"))
		paths, passphrases = append(paths, s.path(name+".share")), append(passphrases, "--share-passphrase-file", s.path(name+".passphrase"))
	}
	return paths, passphrases
}

// signTogether is the command by which holders sign: this test's own binary as hullmark.
func (s *site) signTogether(t *testing.T, names ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	paths, passphrases := s.holders(t, names...)
	return asProgram + "=1 " + self + " cluster sign " + strings.Join(append(paths, passphrases...), " ")
}

// Two of three holders change the policy, who see what they sign; one does not, and nobody has the root's key by himself.
func TestSplitRoot(t *testing.T) {
	s := newSite(t)
	paths, passphrases := s.holders(t, "alice", "bob", "carol")
	code, output := s.with(t, "cluster split", append(append(paths, "--threshold", "2"), passphrases...)...)
	wantExit(t, code, 0, output, "in 3 shares, of which 2 sign together", "destroy the copies of that from before")
	if c := s.open(t); !c.RootElsewhere() || c.Root.Key != nil || c.ID() != s.cluster.ID() {
		t.Fatal("the cluster file has the root's key, or another root")
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	revoke := func(signer string) (int, string) {
		t.Helper()
		return s.with(t, "policy revoke-operators", "--root-signer", signer)
	}
	code, output = s.with(t, "policy revoke-operators")
	wantExit(t, code, exitUsage, output, "--root-signer")
	code, output = revoke(s.signTogether(t, "carol", "alice"))
	wantExit(t, code, 0, output, "to be signed: policy version 1, SHA-256 ", "of root "+s.cluster.ID().String(), "policy version 1")
	code, output = revoke(s.signTogether(t, "bob"))
	wantExit(t, code, exitFailed, output, "exit status 2; nothing was signed")
	code, output = revoke(s.signTogether(t, "bob", "bob"))
	wantExit(t, code, exitFailed, output, "comes twice", "nothing was signed")
	code, output = revoke(strings.Replace(s.signTogether(t, "bob", "carol"), s.path("carol.passphrase"), s.path("bob.passphrase"), 1))
	wantExit(t, code, exitFailed, output, "the passphrase does not open it", "nothing was signed")
	if policy, err := s.open(t).OpenPolicy(); err != nil || policy.Version != 1 {
		t.Errorf("version %d, %v", policy.Version, err)
	}

	// What no root signs nobody is asked to sign. Here it is nothing at all.
	code, output = hullmarkCLI(t, append([]string{"cluster", "sign"}, paths[:2]...)...)
	wantExit(t, code, exitFailed, output, "neither a policy nor a certificate")
	code, output = hullmarkCLI(t, append([]string{"cluster", "sign"}, append(paths[:2:2], passphrases[:2]...)...)...)
	wantExit(t, code, exitUsage, output, "1 for 2 shares")
	more, with := s.holders(t, "dave", "erin")
	code, output = s.with(t, "cluster split", append(append(more, "--threshold", "2"), with...)...)
	wantExit(t, code, exitFailed, output, "not in this cluster file", "hullmark cluster rotate root")
}

// Once a share is opened, its root is known: holders see whether it hands over, and sign no other root's policy.
func TestSignSaysForWhichRoot(t *testing.T) {
	s := newSite(t)
	paths, passphrases := s.holders(t, "alice", "bob")
	code, output := s.with(t, "cluster split", append(append(paths, "--threshold", "2"), passphrases...)...)
	wantExit(t, code, 0, output, "in 2 shares")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	next, err := channel.NewRoot(key)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := measurements.Policy{Version: 1}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	o := shareOptions{passphrases: []string{s.path("alice.passphrase"), s.path("bob.passphrase")}}
	for name, c := range map[string]struct {
		message []byte
		says    string
		refused string
	}{
		"another root":          {next.RawTBSCertificate, "HANDS OVER to " + hullmark.ClusterRootOf(next.RawSubjectPublicKeyInfo).String(), ""},
		"the root itself":       {s.cluster.Root.Certificate.RawTBSCertificate, "the certificate is the root's own", ""},
		"its policy":            {hullmark.SigningInput(hullmark.PolicyKind, s.cluster.ID(), policy), "policy version 1, SHA-256 ", ""},
		"another root's policy": {hullmark.SigningInput(hullmark.PolicyKind, hullmark.ClusterRoot{1}, policy), "policy version 1, SHA-256 ", "names root " + hullmark.ClusterRoot{1}.String()},
	} {
		var notes bytes.Buffer
		signature, err := o.sign(paths, bytes.NewReader(c.message), &notes)
		if !strings.Contains(notes.String(), c.says) {
			t.Errorf("%s: said %q, want %q", name, notes.String(), c.says)
		}
		switch {
		case c.refused == "" && (err != nil || len(signature) == 0):
			t.Errorf("%s: %v", name, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: got %v, want an error with %q", name, err, c.refused)
		}
	}
}

func TestSplitRootRefuses(t *testing.T) {
	s := newSite(t)
	paths, passphrases := s.holders(t, "alice", "bob", "carol")
	s.write(t, "there.share", []byte("something of somebody's"))
	before, err := os.ReadFile(s.path("cluster"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"one share":            {exitUsage, "2 to 16 files", []string{paths[0], "--threshold", "2"}},
		"no threshold":         {exitUsage, "threshold", paths},
		"a threshold of one":   {exitUsage, "want 2 to 3", append(paths[:3:3], "--threshold", "1")},
		"more than there are":  {exitUsage, "want 2 to 3", append(paths[:3:3], "--threshold", "4")},
		"a name twice":         {exitFailed, "named twice", []string{paths[0], paths[0], "--threshold", "2"}},
		"a file that is there": {exitFailed, "exists already", []string{paths[0], s.path("there.share"), "--threshold", "2"}},
		"too few passphrases":  {exitUsage, "2 for 3 shares", append(append(paths[:3:3], "--threshold", "2"), passphrases[:4]...)},
		"no folder":            {exitFailed, "absent", append([]string{paths[0], s.path("absent/bob.share"), "--threshold", "2"}, passphrases[:4]...)},
		"no passphrase":        {exitFailed, "missing", append([]string{paths[0], paths[1], "--threshold", "2"}, "--share-passphrase-file", s.path("alice.passphrase"), "--share-passphrase-file", s.path("missing"))},
	} {
		code, output := s.with(t, "cluster split", c.args...)
		if code == exitFailed && c.code == exitUsage && strings.Contains(output, c.says) {
			code = exitUsage // Before the verb itself begins, all is usage (run).
		}
		wantExit(t, code, c.code, name+": "+output, c.says)
		for _, path := range paths {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s: %s was made", name, path)
			}
		}
	}
	if after, err := os.ReadFile(s.path("cluster")); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the cluster file changed: %v", err)
	}
	if there, err := os.ReadFile(s.path("there.share")); err != nil || string(there) != "something of somebody's" {
		t.Errorf("a file that was there is %q, %v", there, err)
	}
}
