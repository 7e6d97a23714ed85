package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/measurements/tlog/place"
)

// digest names a document of the fixture.
func (f logFixture) digest(name string) string {
	f.t.Helper()
	document, err := os.ReadFile(f.path(name + ".json"))
	if err != nil {
		f.t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(document))
}

// copyLog copies the fixture's log.
func (f logFixture) copyLog(to string) string {
	f.t.Helper()
	if err := os.CopyFS(f.path(to), os.DirFS(f.path("log"))); err != nil {
		f.t.Fatal(err)
	}
	return f.path(to)
}

// What is fetched is in the log, and what else is in there is shown until it is announced.
func TestFetchFromLog(t *testing.T) {
	f := newLogFixture(t)
	f.publish("spring", "--to", "@releases")
	f.want(0, []string{"log", "witness", "@log", "--log-key", "@log.pub", "--witness-key", "@witness.key", "--state", "@state", "--first"})
	server := httptest.NewServer(http.FileServer(http.Dir(f.dir)))
	t.Cleanup(server.Close)
	name := releaseName(t, f.path("releases"))
	fetch := []string{"fetch", name, "--from", server.URL + "/releases", "--key", "@release.pub", "--out", "@fetched.dsse", "--log", server.URL + "/log", "--log-key", "@log.pub"}
	seen := with(fetch, "--log-state", "@seen")
	f.want(0, with(seen, "--witness", "@witness.pub", "--log-proof", "@proof"), "fetched.dsse: image", "entry 0 of 1 in releases.example/node, cosigned by 1 of 1 witnesses, last at 20")
	f.want(0, []string{"verify", "@fetched.dsse", "--key", "@release.pub", "--log-proof", "@proof", "--log-key", "@log.pub", "--witness", "@witness.pub"}, "cosigned by 1 of 1")

	f.want(0, []string{"publish", "@secret.dsse", "--key", "@release.pub", "--log", "@log", "--log-key", "@log.key", "--to", "@elsewhere"})
	for range 2 { // It is shown for as long as it is so.
		if err := os.Remove(f.path("fetched.dsse")); err != nil {
			t.Fatal(err)
		}
		f.want(exitMismatch, seen, "entry 1 is not announced", "release secret, security version 2, document "+f.digest("secret"), "entry 0 of 2", "1 releases by this key are in the log")
	}
	f.want(0, []string{"verify", "@fetched.dsse", "--key", "@release.pub"})
	f.want(exitFailed, with(seen, "--witness", "@witness.pub"), "0 of 1 witnesses cosigned it, want 1")

	f.want(0, []string{"publish", "@secret.dsse", "--key", "@release.pub", "--to", "@releases"})
	f.want(0, seen, "entry 1 of 2")
	f.want(0, append([]string{"fetch", f.digest("spring")}, seen[2:]...), "entry 0 of 2")

	// What is announced is not looked for again, unless it is for the releases of another key.
	f.want(0, []string{"sign", "@spring.json", "--key", "@stranger.key", "--out", "@strange.dsse"})
	f.want(0, []string{"publish", "@strange.dsse", "--key", "@stranger.pub", "--log", "@log", "--log-key", "@log.key", "--to", "@strange"})
	if err := os.Remove(filepath.Join(f.path("releases"), "sha256", f.digest("spring")+".dsse")); err != nil {
		t.Fatal(err)
	}
	f.want(0, seen, "entry 1 of 3", "1 new entries are by other keys")
	f.want(exitMismatch, fetch, "entry 0 is not announced")
	f.want(0, []string{"fetch", name, "--from", "@strange", "--key", "@stranger.pub", "--out", "@x", "--log", "@log", "--log-key", "@log.pub", "--log-state", "@seen"}, "2 new entries are by other keys", "entry 2 of 3")
}

// An entry can hold any words. They cannot pass for ours.
func TestFetchShowsWordsOfALog(t *testing.T) {
	f := newLogFixture(t)
	f.publish("spring", "--to", "@releases")
	signer, err := readPrivateKey(f.path("log.key"), "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	key, err := readPublicKey(f.path("release.pub"))
	if err != nil {
		t.Fatal(err)
	}
	by, err := tlog.KeyDigest(key)
	if err != nil {
		t.Fatal(err)
	}
	e := tlog.Entry{Schema: tlog.EntrySchema, Statement: by, Key: by, Image: "node\x1b[2J\u202e", Release: "x\nlog         entry 9 is announced" + strings.Repeat("!", 7000)}
	if _, err := place.Append(t.Context(), f.path("log"), signer, e); err != nil {
		t.Fatal(err)
	}
	code, output := hullmarkCLI(t, "fetch", releaseName(t, f.path("releases")), "--from", f.path("releases"), "--key", f.path("release.pub"), "--out", f.path("x"), "--log", f.path("log"), "--log-key", f.path("log.pub"))
	wantExit(t, code, exitMismatch, output, "entry 1 is not announced: image node[2J, release x log entry 9", "entry 0 of 2")
	if strings.ContainsAny(output, "\x1b\u202e") || strings.Contains(output, "\nlog         entry 9") || len(output) > 5000 {
		t.Errorf("it says %q", output)
	}
}

// Of a log that is not right nothing is fetched, and what was seen of it before is kept.
func TestFetchRefusesLog(t *testing.T) {
	f := newLogFixture(t)
	f.publish("spring", "--to", "@releases")
	f.publish("secret", "--to", "@releases", "--log-proof", "@x")
	// Other logs by the same key: one that is shorter, and one that has the releases in another order.
	for _, other := range []string{"short", "forked"} {
		f.want(0, []string{"log", "create", "@" + other, "--origin", "releases.example/node", "--log-key", "@log.key"})
		f.want(0, []string{"publish", "@secret.dsse", "--key", "@release.pub", "--log", "@" + other, "--log-key", "@log.key", "--log-proof", "@x", "--to", "@releases"})
	}
	f.want(0, []string{"publish", "@spring.dsse", "--key", "@release.pub", "--log", "@forked", "--log-key", "@log.key", "--log-proof", "@x", "--to", "@releases"})
	write(t, filepath.Join(f.copyLog("damaged"), "tile/0/000.p/2"), make([]byte, 2*sha256.Size))
	write(t, filepath.Join(f.copyLog("swapped"), "tile/entries/000.p/2"), []byte("\x00\x01x\x00\x01y"))
	signer, err := readPrivateKey(f.path("log.key"), "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{"huge": tlog.MaxSize + 1, "empty": tlog.MaxSize} {
		signed, err := tlog.Checkpoint{Origin: "releases.example/node", Size: size}.Sign(signer)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(f.copyLog(name), tlog.CheckpointName), signed)
	}
	files := http.FileServer(http.Dir(f.dir))
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/tile/entries/") {
			files.ServeHTTP(w, r)
			return
		}
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(endless.Close)

	fetch := []string{"fetch", releaseName(t, f.path("releases")), "--from", "@releases", "--key", "@release.pub", "--out", "@z.dsse", "--log-proof", "@z.proof"}
	fresh := with(fetch, "--log-key", "@log.pub")
	seen := with(fresh, "--log-state", "@seen")
	f.want(0, with(seen, "--log", "@log", "--out", "@x"), "entry 0 of 2")
	if err := os.Remove(f.path("z.proof")); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(f.path("seen"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, f.path("torn"), before[:len(before)-9])
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"a log that forgot":           {with(seen, "--log", "@short"), exitMismatch, "it forgot some"},
		"a log that forked":           {with(seen, "--log", "@forked"), exitMismatch, "others are shown other releases"},
		"a release that is not in it": {with(fresh, "--log", "@short"), exitMismatch, "not in the log"},
		"no witness":                  {with(seen, "--log", "@log", "--witness", "@witness.pub"), exitFailed, "0 of 1 witnesses cosigned it, want 1"},
		"another log's key":           {with(fetch, "--log-key", "@stranger.pub", "--log", "@log"), exitFailed, "by the log's key"},
		"a log of another name":       {with(fresh, "--log-origin", "releases.example/other", "--log", "@log"), exitFailed, "it is of the log"},
		"a tile of something else":    {with(fresh, "--log", "@damaged"), exitFailed, "do not hash up"},
		"entries of something else":   {with(fresh, "--log", "@swapped"), exitFailed, "another than the one in the tree"},
		"entries without end":         {with(fresh, "--log", endless.URL+"/log"), exitFailed, "too long"},
		"more entries than any has":   {with(fresh, "--log", "@huge"), exitFailed, "want 0 to 1048576"},
		"many entries and no tiles":   {with(fresh, "--log", "@empty"), exitFailed, "no such file"},
		"a state that is torn":        {with(fresh, "--log", "@log", "--log-state", "@torn"), exitFailed, "cut off"},
		"a state that is a key":       {with(fresh, "--log", "@log", "--log-state", "@log.pub"), exitFailed, "what was seen of the log"},
		"a log that is not there":     {with(fresh, "--log", "http://127.0.0.1:1/"), exitUnreachable, "checkpoint"},
		"a log that is no address":    {with(fresh, "--log", "ftp://host/"), exitUsage, "http://HOST/PATH"},
		"a log without a key":         {with(fetch, "--log", "@log"), exitUsage, "together"},
		"a key without a log":         {fresh, exitUsage, "together"},
		"a state without a log":       {with(fetch, "--log-state", "@seen"), exitUsage, "together"},
		"a witness without a log":     {with(fetch, "--witness", "@witness.pub"), exitUsage, "together"},
	} {
		t.Run(name, func(t *testing.T) {
			f := logFixture{t, f.dir}
			f.want(c.code, c.args, c.want)
			for _, file := range []string{"z.dsse", "z.proof"} {
				if _, err := os.Stat(f.path(file)); err == nil {
					t.Errorf("%s was written", file)
				}
			}
			if after, err := os.ReadFile(f.path("seen")); err != nil || !bytes.Equal(after, before) {
				t.Errorf("what was seen is another: %v", err)
			}
		})
	}
	f.want(0, with(seen, "--log", "@log"), "entry 0 of 2")
}
