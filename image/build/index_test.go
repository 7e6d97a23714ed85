package build

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/lock"
)

// TestReplayedIndexes has an archive show signed indexes of other days, which apt takes: their signature is right.
func TestReplayedIndexes(t *testing.T) {
	const day = 24 * time.Hour
	a := newArchive(t)
	now := time.Now().UTC().Truncate(time.Second)
	locked := []lock.Suite{{Archive: mainArchive, Name: release, Date: now.Add(-day).Unix()}}
	for _, c := range []struct {
		name       string
		made, ends time.Time
		earlier    []lock.Suite
		historical bool
		want       string // empty: it is taken
	}{
		{"older than the locked one", now.Add(-2 * day), now.Add(5 * day), locked, false, "but the lock has that debian " + release},
		{"past its end", now.Add(-day), now.Add(-time.Hour), nil, false, "is valid until"},
		{"older, without an end", now.Add(-2 * day), time.Time{}, locked, false, "but the lock has that"},
		{"older, on purpose", now.Add(-2 * day), now.Add(-day), locked, true, ""},
		{"the locked one", now.Add(-day), now.Add(day), locked, false, ""},
		{"newer than the locked one", now.Add(-time.Hour), now.Add(day), locked, false, ""},
		{"a release itself, without an end", now.Add(-time.Hour), time.Time{}, locked, false, ""},
		{"old, of an archive that was never locked, without an end", now.Add(-900 * day), time.Time{}, nil, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a.publish(t, c.made, c.ends)
			suites, newest, err := Options{Historical: c.historical}.suites(a.update(t), c.earlier, now)
			if c.want != "" {
				if !errors.Is(err, ErrReplayed) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "--historical") {
					t.Errorf("got %v %v, want %q", suites, err, c.want)
				}
				return
			}
			if err != nil || len(suites) != 1 || suites[0].Date != c.made.Unix() || newest != c.made.Unix() {
				t.Errorf("got %v %d %v", suites, newest, err)
			}
		})
	}
}

// A suite that the lock has is not asked for any more, or under another name: the next lock would take any index of it.
func TestLostSuite(t *testing.T) {
	a := newArchive(t)
	now := time.Now().UTC().Truncate(time.Second)
	a.publish(t, now.Add(-time.Hour), now.Add(24*time.Hour))
	here := lock.Suite{Archive: mainArchive, Name: release, Date: now.Add(-48 * time.Hour).Unix()}
	lost := lock.Suite{Archive: securityArchive, Name: release + "-security", Date: now.Add(-time.Minute).Unix()}
	for _, o := range []Options{{}, {Historical: true}} {
		suites, _, err := o.suites(a.update(t), []lock.Suite{here, lost}, now)
		if !errors.Is(err, ErrSuiteLost) || !strings.Contains(err.Error(), lost.Name) || !strings.Contains(err.Error(), "--fewer-suites") {
			t.Errorf("%+v: the security suite of the lock is gone: %v, %v", o, suites, err)
		}
	}
	var said strings.Builder
	o := Options{FewerSuites: true, Progress: NewProgress(&said, time.Now)}
	if suites, _, err := o.suites(a.update(t), []lock.Suite{here, lost}, now); err != nil || len(suites) != 1 || !strings.Contains(said.String(), "goes without "+securityArchive) {
		t.Errorf("on purpose: %v, %v, said %q", suites, err, said.String())
	}
	said.Reset()
	if suites, _, err := o.suites(a.update(t), []lock.Suite{here}, now); err != nil || len(suites) != 1 || said.Len() > 0 {
		t.Errorf("with all suites of the lock: %v, %v, said %q", suites, err, said.String())
	}
}

// archive is a signed archive of one empty suite.
type archive struct{ dir, home, keyring, url string }

func newArchive(t *testing.T) archive {
	t.Helper()
	a := archive{dir: t.TempDir(), home: t.TempDir()}
	a.keyring = filepath.Join(a.home, "archive.gpg")
	a.gpg(t, "--passphrase", "", "--quick-generate-key", "archive@example.org", "rsa3072", "sign", "never")
	a.gpg(t, "--output", a.keyring, "--export")
	a.offer(t, "main", "")
	server := httptest.NewServer(http.FileServer(http.Dir(a.dir)))
	t.Cleanup(server.Close)
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", a.home, "--kill", "all").Run() })
	a.url = server.URL + "/debian"
	return a
}

// offer writes the index of a component.
func (a archive) offer(t *testing.T, component, packages string) {
	t.Helper()
	dir := filepath.Join(a.dir, "debian/dists", release, component, "binary-amd64")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "Packages"), []byte(packages), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func (a archive) gpg(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("gpg", append([]string{"--homedir", a.home, "--batch", "--yes", "--pinentry-mode", "loopback"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("gpg: %v (apt-get install gnupg)\n%s", err, out)
	}
}

// publish signs an index that was made, and ends, at these times.
func (a archive) publish(t *testing.T, made, ends time.Time) {
	t.Helper()
	text := fmt.Sprintf("Origin: Test\nSuite: %s\nCodename: %s\nDate: %s\n", release, release, made.Format(time.RFC1123))
	if !ends.IsZero() {
		text += fmt.Sprintf("Valid-Until: %s\n", ends.Format(time.RFC1123))
	}
	indexes, err := filepath.Glob(filepath.Join(a.dir, "debian/dists", release, "*/binary-amd64/Packages"))
	if err != nil {
		t.Fatal(err)
	}
	var components, sums string
	for _, file := range indexes {
		component := filepath.Base(filepath.Dir(filepath.Dir(file)))
		components += " " + component
		sums += fmt.Sprintf(" %s %d %s/binary-amd64/Packages\n", shaOf(readText(t, file)), len(readText(t, file)), component)
	}
	text += "Architectures: amd64\nComponents:" + components + "\nSHA256:\n" + sums
	plain := filepath.Join(a.home, "Release")
	if err := os.WriteFile(plain, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a.gpg(t, "--output", filepath.Join(a.dir, "debian/dists", release, "InRelease"), "--clearsign", plain)
}

// update has an apt without a past fetch the index.
func (a archive) update(t *testing.T) apt {
	t.Helper()
	source := aptSource{archive: mainArchive, url: a.url, suites: []string{release}, keyring: a.keyring}
	fetched, err := newApt(t.TempDir(), []aptSource{source}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := fetched.update(t.Context()); err != nil {
		t.Fatal(err)
	}
	return fetched
}

// TestReadIndexReadsWhatIsSigned has dates outside of what the signature is over, and twice.
func TestReadIndexReadsWhatIsSigned(t *testing.T) {
	const (
		begin = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n"
		date  = "Date: Sat, 21 Nov 2026 02:10:46 UTC\n"
		later = "Date: Sun, 22 Nov 2026 02:10:46 UTC\n"
		end   = "-----BEGIN PGP SIGNATURE-----\n\nx\n-----END PGP SIGNATURE-----\n"
	)
	for _, file := range []string{begin + "\nOrigin: x\n" + date + end, begin + "Hash: SHA256\n\n" + date + end, begin + "\n" + date + end + later} {
		if in, err := readIndex([]byte(file)); err != nil || in.Date != 1795227046 {
			t.Errorf("%q: %v %v", file, in, err)
		}
	}
	for name, file := range map[string]string{
		"unsigned": date, "no date": begin + "\nOrigin: x\n" + end, "two": begin + "\n" + date + later + end, "no day": begin + "\nDate: tomorrow\n" + end,
		"another armour header": begin + later + "\n" + date + end,
		// apt takes a line of blanks for the end of the armour's headers, and the first text as what is signed.
		"a date behind the signature": begin + " \n" + date + "-----BEGIN PGP SIGNATURE-----\n \nx\n-----BEGIN PGP SIGNATURE-----\n\n" + later + "-----BEGIN PGP SIGNATURE-----\n\nx\n",
		"a signature with a blank":    begin + "\n" + date + "-----BEGIN PGP SIGNATURE----- \n" + later + end,
		"a line that is escaped":      begin + "\n- " + later + date + end, "carriage returns": begin + "\n" + date + "\r\n" + end, "no end": begin + "\n" + date,
		"before the signed": begin + later + "\nOrigin: x\n" + end, "something in front": later + begin + "\n" + date + end,
	} {
		if in, err := readIndex([]byte(file)); err == nil {
			t.Errorf("%s: %v", name, in)
		}
	}
}

// apt takes a line of blanks for the end of an armour's headers: an old index, correctly signed, and a date behind it that
// nobody signed. Only the first is believed, or neither.
func TestDateThatNobodySigned(t *testing.T) {
	a, now := newArchive(t), time.Now().UTC().Truncate(time.Second)
	a.publish(t, now.Add(-30*24*time.Hour), now.Add(-23*24*time.Hour))
	path := filepath.Join(a.dir, "debian/dists", release, "InRelease")
	honest, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "-----BEGIN PGP SIGNATURE-----\n", "-----END PGP SIGNATURE-----\n"
	text, armour, _ := strings.Cut(string(honest), begin)
	text = strings.Replace(text, "\n\n", "\n \n", 1)
	date := "\nDate: " + now.Format(time.RFC1123) + "\n"
	for name, forged := range map[string]string{
		"in a second signature": text + begin + " " + armour + begin + date + end + begin + end,
		"in a broken one":       text + begin + " " + armour + begin + " " + armour + begin + date + end + begin + end,
	} {
		if err := os.WriteFile(path, []byte(forged), 0o600); err != nil {
			t.Fatal(err)
		}
		fetched, err := newApt(t.TempDir(), []aptSource{{archive: mainArchive, url: a.url, suites: []string{release}, keyring: a.keyring}}, "")
		if err == nil {
			err = fetched.update(t.Context())
		}
		if err != nil {
			t.Logf("%s: apt refuses it, too: %v", name, err)
			continue
		}
		locked := []lock.Suite{{Archive: mainArchive, Name: release, Date: now.Add(-24 * time.Hour).Unix()}}
		if suites, _, err := (Options{}).suites(fetched, locked, now); err == nil {
			t.Errorf("%s: the lock says %v", name, suites)
		}
	}
}

// A package of another component than main is there for whoever names that component, and for nobody else.
func TestComponentsCountWhereTheyAreNamed(t *testing.T) {
	a := newArchive(t)
	index := func(name string) string {
		return fmt.Sprintf("Package: %s\nVersion: 1\nArchitecture: all\nFilename: pool/%s_1_all.deb\nSize: 1\nSHA256: %s\n\n", name, name, shaOf(name))
	}
	a.offer(t, "main", index("free"))
	a.offer(t, "non-free-firmware", index("card"))
	now := time.Now()
	a.publish(t, now.Add(-time.Hour), now.Add(time.Hour))
	plain := a.update(t)
	if got, err := plain.resolve(t.Context(), lock.Root, []string{"card"}); err == nil {
		t.Errorf("nobody asked for what is not free: %v", got)
	}
	wide, err := plain.with([]string{"non-free-firmware"})
	if err != nil {
		t.Fatal(err)
	}
	for set, from := range map[string]apt{"free": plain, "free card": wide} {
		names := strings.Fields(set)
		if got, err := from.resolve(t.Context(), lock.Root, names); err != nil || len(got) != len(names) {
			t.Errorf("%s: %v, %v", set, got, err)
		}
	}
	if _, err := plain.with([]string{"universe"}); err == nil || !strings.Contains(err.Error(), "Repositories=universe") {
		t.Errorf("a component that Debian does not have: %v", err)
	}
}
