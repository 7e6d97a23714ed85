package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// logFixture has two signed releases, of which one is published, a log, a witness, and their keys.
type logFixture struct {
	t   *testing.T
	dir string
}

func newLogFixture(t *testing.T) logFixture {
	t.Helper()
	f := logFixture{t, t.TempDir()}
	m := newMeasureFixture(t)
	for _, key := range []string{"release", "stranger", "log", "witness", "witness2"} {
		f.newKey(key, "ED25519")
	}
	for svn, name := range map[string]string{"1": "spring", "2": "secret"} {
		_, document := hullmarkCLI(t, "measure", m.image, "--firmware", m.firmware, "--vars", m.vars, "--release", name, "--svn", svn, "-o", "json")
		write(t, f.path(name+".json"), []byte(document))
		f.want(0, []string{"sign", f.path(name + ".json"), "--key", f.path("release.key")}, name+".dsse")
	}
	f.want(0, []string{"log", "create", f.path("log"), "--origin", "releases.example/node", "--log-key", f.path("log.key")}, "without entries")
	return f
}

func (f logFixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f logFixture) newKey(name, algorithm string, more ...string) {
	f.t.Helper()
	openssl(f.t, append([]string{"genpkey", "-algorithm", algorithm, "-out", f.path(name + ".key")}, more...)...)
	openssl(f.t, "pkey", "-in", f.path(name+".key"), "-pubout", "-out", f.path(name+".pub"))
}

// want runs a command and wants its code, and words in what it says. Words with an @ in front are names in the fixture's folder.
func (f logFixture) want(code int, args []string, words ...string) {
	f.t.Helper()
	args = append([]string(nil), args...)
	for i, arg := range args {
		if name, ok := strings.CutPrefix(arg, "@"); ok {
			args[i] = f.path(name)
		}
	}
	got, output := hullmarkCLI(f.t, args...)
	wantExit(f.t, got, code, strings.Join(args, " ")+"\n"+output, words...)
}

// with is a command with more words.
func with(args []string, more ...string) []string { return append(slices.Clone(args), more...) }

func (f logFixture) publish(name string, more ...string) {
	f.t.Helper()
	f.want(0, append([]string{"publish", "@" + name + ".dsse", "--key", "@release.pub", "--log", "@log", "--log-key", "@log.key"}, more...), "published in", "the proof that it is in the log")
}

// A release is appended, cosigned, published with its proof, fetched and verified offline.
func TestLogOfReleases(t *testing.T) {
	f := newLogFixture(t)
	f.publish("spring", "--to", "@releases")
	verify := []string{"verify", "@spring.dsse", "--key", "@release.pub", "--log-key", "@log.pub"}
	f.want(0, append(verify, "--log-proof", "@spring.proof.json"), "log         entry 0 of 1 in releases.example/node, cosigned by 0 of 0 witnesses")

	// Two witnesses, one with the log's folder and one far away.
	server := httptest.NewServer(http.FileServer(http.Dir(f.dir)))
	t.Cleanup(server.Close)
	f.want(0, []string{"log", "witness", "@log", "--log-key", "@log.pub", "--witness-key", "@witness.key", "--state", "@state", "--first"}, "cosigned 1 entries")
	f.want(0, []string{"log", "witness", server.URL + "/log", "--log-key", "@log.pub", "--witness-key", "@witness2.key", "--state", "@state2", "--first"}, "cosigned 1 entries")
	prove := []string{"log", "prove", "@spring.dsse", "--key", "@release.pub", "--log", server.URL + "/log", "--log-key", "@log.pub"}
	both := []string{"--witness", "@witness.pub", "--witness", "@witness2.pub"}
	f.want(0, append(prove, "--checkpoint", "@state", "--checkpoint", "@state2", "--witness", "@witness.pub", "--witness", "@witness2.pub"), "entry 0")
	f.want(0, []string{"publish", "@spring.dsse", "--key", "@release.pub", "--to", "@releases", "--log-proof", "@spring.proof.json"}, "published in")
	name := releaseName(t, f.path("releases"))
	f.want(0, []string{"fetch", name, "--from", server.URL + "/releases", "--key", "@release.pub", "--out", "@fetched.dsse", "--log-proof", "@fetched.proof.json"}, "fetched.dsse")
	fetched := append([]string{"verify", "@fetched.dsse", "--key", "@release.pub", "--log-key", "@log.pub", "--log-proof", "@fetched.proof.json", "--log-origin", "releases.example/node"}, both...)
	f.want(0, fetched, "cosigned by 2 of 2 witnesses")
	f.want(0, append(fetched, "-o", "json"), `"origin": "releases.example/node"`, `"cosigned": 2`, `"log"`)
	f.want(0, append(fetched, "--witness", "@stranger.pub", "--witness-threshold", "2"), "cosigned by 2 of 3 witnesses")

	// Who watches the log.
	list := []string{"log", "list", server.URL + "/log", "--log-key", "@log.pub", "--from", server.URL + "/releases", "--key", "@release.pub", "--state", "@seen"}
	f.want(0, append(list, "--witness", "@witness.pub"), "log releases.example/node: 1 entries", "cosigned by 1 of 1 witnesses, last at 20", "spring", "announced")
	f.want(0, []string{"publish", "@secret.dsse", "--key", "@release.pub", "--log", "@log", "--log-key", "@log.key", "--to", "@elsewhere"}, "published in")
	f.want(exitMismatch, append(list, "--seen", "@state2"), "secret", "not announced", "1 of 2 releases are not announced")
	f.want(exitMismatch, append(list, "-o", "json"), `"standing": "not announced"`, `"release": "secret"`)
	f.want(0, []string{"log", "list", "@log", "--log-key", "@log.pub"}, "2 entries", "secret")
	f.want(0, []string{"log", "witness", "@log", "--log-key", "@log.pub", "--witness-key", "@witness.key", "--state", "@state"}, "cosigned 2 entries")
}

// releaseName is that of the only document that is published in a folder.
func releaseName(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.dsse"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return strings.TrimSuffix(filepath.Base(found[0]), ".dsse")
}

// A release that is refused does not get into the log, whatever it is refused for.
func TestRefusedReleaseIsNotLogged(t *testing.T) {
	f := newLogFixture(t)
	m := newMeasureFixture(t)
	_, document := hullmarkCLI(t, "measure", m.image, "--firmware", m.firmware, "--vars", m.vars, "--config", m.config, "-o", "json")
	write(t, f.path("node.json"), []byte(document))
	f.want(0, []string{"sign", "@node.json", "--key", "@release.key"}, "node.dsse")
	write(t, f.path("x"), []byte("another image"))
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"a node's configuration":     {[]string{"@node.dsse", "--to", "@releases"}, exitFailed, "holds the configuration of one node"},
		"another image":              {[]string{"@spring.dsse", "--to", "@releases", "--image", "@x"}, exitFailed, "signed is a disk with"},
		"a provenance that is none":  {[]string{"@spring.dsse", "--to", "@releases", "--provenance", "@x"}, exitFailed, "@x"},
		"a registry, and no image":   {[]string{"@spring.dsse", "--to", "oci://127.0.0.1:1/x"}, exitFailed, "name the image, too"},
		"a registry that is no more": {[]string{"@spring.dsse", "--to", "oci://127.0.0.1:1/x", "--image", "@image"}, exitFailed, "what is published there"},
		"a proof over the key":       {[]string{"@spring.dsse", "--to", "@releases", "--log-proof", "@log.key"}, exitUsage, "is what is read"},
		"no place":                   {[]string{"@spring.dsse", "--to", ""}, exitUsage, "a place without a name"},
	} {
		t.Run(name, func(t *testing.T) {
			f := logFixture{t, f.dir}
			f.want(c.code, append([]string{"publish", "--key", "@release.pub", "--log", "@log", "--log-key", "@log.key"}, c.args...), strings.ReplaceAll(c.want, "@", f.dir+"/"))
			f.want(0, []string{"log", "list", "@log", "--log-key", "@log.pub"}, "0 entries")
		})
	}
	if _, err := os.Stat(f.path("releases")); err == nil {
		t.Error("something was published")
	}
	f.publish("spring", "--to", "@releases")
	f.want(0, []string{"log", "list", "@log", "--log-key", "@log.pub"}, "1 entries")
}

// Witnesses that look at a log at different times have checkpoints of different sizes: the proof is of the largest that enough cosigned.
func TestProveByCheckpointsOfWitnesses(t *testing.T) {
	f := newLogFixture(t)
	witness := func(log, key, state string, more ...string) {
		f.want(0, append([]string{"log", "witness", "@" + log, "--log-key", "@log.pub", "--witness-key", "@" + key + ".key", "--state", "@" + state}, more...), "cosigned")
	}
	f.publish("spring", "--to", "@releases")
	witness("log", "witness2", "behind", "--first")
	witness("log", "witness", "one", "--first") // with what witness2 put into the log's folder
	f.want(0, []string{"log", "create", "@forked", "--origin", "releases.example/node", "--log-key", "@log.key"})
	f.want(0, []string{"publish", "@secret.dsse", "--key", "@release.pub", "--log", "@forked", "--log-key", "@log.key", "--log-proof", "@x", "--to", "@elsewhere"})
	witness("forked", "witness2", "fork", "--first")
	f.publish("secret", "--to", "@releases")
	write(t, f.path("two"), mustRead(t, f.path("one")))
	witness("log", "witness", "two")
	prove := []string{"log", "prove", "@spring.dsse", "--key", "@release.pub", "--log", "@log", "--log-key", "@log.pub", "--out", "@proof", "--witness", "@witness.pub", "--witness", "@witness2.pub"}
	verify := []string{"verify", "@spring.dsse", "--key", "@release.pub", "--log-key", "@log.pub", "--log-proof", "@proof", "--witness", "@witness.pub", "--witness", "@witness2.pub"}

	f.want(0, with(prove, "--checkpoint", "@two", "--checkpoint", "@behind", "--witness-threshold", "1"), "entry 0", "warning: --witness-threshold 1 of 2 witnesses")
	f.want(0, with(verify, "--witness-threshold", "1"), "entry 0 of 2", "cosigned by 1 of 2 witnesses, last at 20", "warning: --witness-threshold 1 of 2 witnesses")
	f.want(0, with(prove, "--checkpoint", "@two", "--checkpoint", "@behind", "--checkpoint", "@one"), "entry 0")
	f.want(0, verify, "entry 0 of 1", "cosigned by 2 of 2 witnesses, last at 20")
	f.want(exitFailed, with(prove, "--checkpoint", "@two", "--checkpoint", "@behind"), "cosigned are one of 2 entries by 1, one of 1 entries by 1", "looked at the log again")
	f.want(exitMismatch, with(prove, "--checkpoint", "@one", "--checkpoint", "@fork"), "others are shown other releases")
	f.want(exitMismatch, with(prove, "--checkpoint", "@two", "--checkpoint", "@fork", "--witness-threshold", "1"), "it forked")
	f.want(exitMismatch, []string{"log", "prove", "@secret.dsse", "--key", "@release.pub", "--log", "@log", "--log-key", "@log.pub", "--out", "@x", "--checkpoint", "@one"}, "not in the log")
	// Two of three are more than half.
	code, output := hullmarkCLI(t, "verify", f.path("spring.dsse"), "--key", f.path("release.pub"), "--log-key", f.path("log.pub"), "--log-proof", f.path("proof"),
		"--witness", f.path("witness.pub"), "--witness", f.path("witness2.pub"), "--witness", f.path("stranger.pub"), "--witness-threshold", "2", "-o", "json")
	wantExit(t, code, 0, output, `"cosignedAt": "20`)
	if strings.Contains(output, "warning") {
		t.Error(output)
	}
}

func TestLogRefusals(t *testing.T) {
	f := newLogFixture(t)
	f.newKey("p256", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
	f.publish("spring", "--to", "@releases")
	f.publish("secret", "--to", "@releases", "--log-proof", "@secret.proof")
	f.want(0, []string{"log", "witness", "@log", "--log-key", "@log.pub", "--witness-key", "@witness.key", "--state", "@state", "--first"})
	f.want(0, []string{"publish", "@spring.dsse", "--key", "@release.pub", "--to", "@plain"}, "published in")
	// Other logs by the same key: one that is shorter, and one that has the releases in another order.
	for _, other := range []string{"short", "forked"} {
		f.want(0, []string{"log", "create", "@" + other, "--origin", "releases.example/node", "--log-key", "@log.key"})
		f.want(0, []string{"publish", "@secret.dsse", "--key", "@release.pub", "--log", "@" + other, "--log-key", "@log.key", "--log-proof", "@x", "--to", "@releases"})
	}
	f.want(0, []string{"publish", "@spring.dsse", "--key", "@release.pub", "--log", "@forked", "--log-key", "@log.key", "--log-proof", "@x", "--to", "@releases"})
	verify := []string{"verify", "@spring.dsse", "--key", "@release.pub"}
	proof := append(verify, "--log-proof", "@spring.proof.json", "--log-key", "@log.pub")
	witness := []string{"--log-key", "@log.pub", "--witness-key", "@witness.key", "--state", "@state"}
	list := []string{"--log-key", "@log.pub", "--seen", "@state"}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"a proof of another document":      {with(verify, "--log-proof", "@secret.proof", "--log-key", "@log.pub"), exitMismatch, "not in the log"},
		"a proof of another log's key":     {with(verify, "--log-proof", "@spring.proof.json", "--log-key", "@stranger.pub"), exitFailed, "by the log's key"},
		"a log of another name":            {with(proof, "--log-origin", "releases.example/other"), exitFailed, "it is of the log"},
		"a witness that did not cosign":    {with(proof, "--witness", "@witness.pub"), exitFailed, "0 of 1 witnesses cosigned it, want 1"},
		"a witness that is named twice":    {with(proof, "--witness", "@witness.pub", "--witness", "@witness.pub"), exitFailed, "one witness counts once"},
		"a threshold over all":             {with(proof, "--witness", "@witness.pub", "--witness-threshold", "2"), exitUsage, "1 witnesses are named"},
		"a threshold without witnesses":    {with(proof, "--witness-threshold", "1"), exitUsage, "0 witnesses are named"},
		"a log's key alone":                {with(verify, "--log-key", "@log.pub"), exitUsage, "together"},
		"a proof alone":                    {with(verify, "--log-proof", "@spring.proof.json"), exitUsage, "together"},
		"a witness alone":                  {with(verify, "--witness", "@witness.pub"), exitUsage, "together"},
		"an ECDSA key":                     {with(verify, "--log-proof", "@spring.proof.json", "--log-key", "@p256.pub"), exitFailed, "want Ed25519"},
		"a proof that is none":             {with(verify, "--log-proof", "@spring.json", "--log-key", "@log.pub"), exitFailed, "log proof"},
		"a proof that is written over":     {with(proof, "--document", "@spring.proof.json"), exitUsage, "is what is read"},
		"a document that is in no log":     {[]string{"log", "prove", "@spring.dsse", "--key", "@release.pub", "--log", "@short", "--log-key", "@log.pub", "--out", "@y"}, exitMismatch, "not in the log"},
		"a proof by another's checkpoint":  {[]string{"log", "prove", "@spring.dsse", "--key", "@release.pub", "--log", "@short", "--log-key", "@log.pub", "--out", "@y", "--checkpoint", "@state"}, exitFailed, "log releases.example/node"},
		"a log there":                      {[]string{"log", "create", "@log", "--origin", "releases.example/node", "--log-key", "@log.key"}, exitFailed, "create log"},
		"a log of a strange name":          {[]string{"log", "create", "@z", "--origin", "https://releases example", "--log-key", "@log.key"}, exitFailed, "origin"},
		"an append by another key":         {[]string{"publish", "@spring.dsse", "--key", "@release.pub", "--to", "@releases", "--log", "@log", "--log-key", "@stranger.key"}, exitFailed, "by the log's key"},
		"an append of what nobody signed":  {[]string{"publish", "@spring.dsse", "--key", "@stranger.pub", "--to", "@releases", "--log", "@log", "--log-key", "@log.key"}, exitFailed, "no signature"},
		"an append without a key":          {[]string{"publish", "@spring.dsse", "--key", "@release.pub", "--to", "@releases", "--log", "@log"}, exitUsage, "together"},
		"another's proof published":        {[]string{"publish", "@spring.dsse", "--key", "@release.pub", "--to", "@releases", "--log-proof", "@secret.proof"}, exitMismatch, "not in the log"},
		"a witness of a log that forgot":   {with([]string{"log", "witness", "@short"}, witness...), exitMismatch, "it forgot some"},
		"a witness of a log that forked":   {with([]string{"log", "witness", "@forked"}, witness...), exitMismatch, "others are shown other releases"},
		"a witness that forgot":            {[]string{"log", "witness", "@log", "--log-key", "@log.pub", "--witness-key", "@witness.key", "--state", "@none"}, exitFailed, "cosigns nothing"},
		"a viewer of a log that forgot":    {with([]string{"log", "list", "@short"}, list...), exitMismatch, "it forgot some"},
		"a viewer of a log that forked":    {with([]string{"log", "list", "@forked"}, list...), exitMismatch, "others are shown other releases"},
		"a place without keys":             {[]string{"log", "list", "@log", "--log-key", "@log.pub", "--from", "@releases"}, exitUsage, "go together"},
		"releases by another key":          {[]string{"log", "list", "@log", "--log-key", "@log.pub", "--from", "@releases", "--key", "@stranger.pub"}, exitMismatch, "by another key"},
		"a log that is no address":         {[]string{"log", "list", "ftp://host/", "--log-key", "@log.pub"}, exitUsage, "http://HOST/PATH"},
		"a log that is not there":          {[]string{"log", "list", "http://127.0.0.1:1/", "--log-key", "@log.pub"}, exitUnreachable, "checkpoint"},
		"a list without a folder":          {[]string{"log", "list", "--log-key", "@log.pub"}, exitUsage, "name the log's folder"},
		"a log as another one is written":  {[]string{"log", "list", "@log", "--log-key", "@log.pub", "--state", "@log.pub"}, exitUsage, "is what is read"},
		"a fetch of what has no proof":     {[]string{"fetch", releaseName(t, f.path("releases")), "--from", "@plain", "--key", "@release.pub", "--out", "@z.dsse", "--log-proof", "@y"}, exitFailed, "no such file"},
		"a proof of a registry's document": {[]string{"publish", "@spring.dsse", "--key", "@release.pub", "--to", "oci://127.0.0.1:1/x", "--log-proof", "@spring.proof.json"}, exitFailed, "registry"},
	} {
		t.Run(name, func(t *testing.T) {
			f := logFixture{t, f.dir}
			f.want(c.code, c.args, c.want)
		})
	}
	if _, err := os.Stat(f.path("y")); err == nil {
		t.Error("a proof was written")
	}
	f.want(0, with(proof), "entry 0 of 1")
	f.want(0, with([]string{"log", "list", "@log"}, list...), "2 entries")
	f.want(0, with([]string{"log", "witness", "@log"}, witness...), "cosigned 2 entries")
}
