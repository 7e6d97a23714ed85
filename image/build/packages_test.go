package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

func lockedPackage(name, content string) lock.Package {
	s := sha256.Sum256([]byte(content))
	return lock.Package{
		Set: lock.Root, Name: name, Version: "1.0-1", Arch: "all", SHA256: hex.EncodeToString(s[:]), Size: int64(len(content)),
		Path: "debian/pool/main/x/" + name + "/" + name + "_1.0-1_all.deb",
	}
}

// testArchive answers like a mirror that holds the given files.
func testArchive(t *testing.T, files map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := files[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(content))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestFetchTakesPackagesByHashFromWhereverTheyAre(t *testing.T) {
	kept, dropped := lockedPackage("kept", "one"), lockedPackage("dropped", "two")
	mirror := testArchive(t, map[string]string{"pool/main/x/kept/kept_1.0-1_all.deb": "one"})
	snapshot := testArchive(t, map[string]string{"debian/20261119T021254Z/pool/main/x/dropped/dropped_1.0-1_all.deb": "two"})
	f := fetcher{store: cache.Store{Root: t.TempDir()}, mirrors: map[string]string{"debian": mirror}, snapshot: snapshot + "/", client: http.DefaultClient}
	l := lock.Lock{Time: 1795054374, Packages: []lock.Package{kept, dropped}}
	if err := f.fetch(t.Context(), l, l.Packages); err != nil {
		t.Fatal(err)
	}
	f.mirrors, f.snapshot = nil, ""
	if err := f.fetch(t.Context(), l, l.Packages); err != nil {
		t.Errorf("from the cache alone: %v", err)
	}
}

func TestFetchNamesEveryPackageThatMoved(t *testing.T) {
	gone, other := lockedPackage("gone", "one"), lockedPackage("other", "two")
	mirror := testArchive(t, map[string]string{"pool/main/x/other/other_1.0-1_all.deb": "TWO"})
	f := fetcher{store: cache.Store{Root: t.TempDir()}, mirrors: map[string]string{"debian": mirror}, client: http.DefaultClient}
	l := lock.Lock{Time: 1, Packages: []lock.Package{gone, other}}
	err := f.fetch(t.Context(), l, l.Packages)
	if got := movedPackages(err); len(got) != 2 {
		t.Fatalf("%d moved: %v", len(got), err)
	}
	for _, want := range []string{"package gone moved: locked version 1.0-1, sha256 " + gone.SHA256, "404", "package other moved", "got " + shaOf("TWO")} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func shaOf(content string) string {
	s := sha256.Sum256([]byte(content))
	return hex.EncodeToString(s[:])
}

// A source that cannot be reached says nothing about whether a package moved.
func TestFetchDoesNotCallAnUnreachablePackageMoved(t *testing.T) {
	f := fetcher{store: cache.Store{Root: t.TempDir()}, mirrors: map[string]string{"debian": "http://127.0.0.1:1"}, client: http.DefaultClient}
	p := lockedPackage("far", "one")
	err := f.fetch(t.Context(), lock.Lock{Time: 1}, []lock.Package{p})
	if err == nil || len(movedPackages(err)) != 0 || !strings.Contains(err.Error(), "far 1.0-1") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.fetch(ctx, lock.Lock{Time: 1}, []lock.Package{p}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestMachineMirrorsReadBothFormsOfAptSources(t *testing.T) {
	for name, c := range map[string]struct{ file, text, list string }{
		"deb822":      {"debian.sources", "Types: deb\nURIs: http://a.example/debian\nSuites: bookworm\n\nTypes: deb\nURIs: http://a.example/debian-security/\n", ""},
		"one line":    {"debian.list", "# deb http://no.example/debian x main\ndeb [arch=amd64 signed-by=/k] http://a.example/debian/ bookworm main\ndeb http://a.example/debian-security bookworm-security main\n", ""},
		"mirror list": {"debian.sources", "URIs: mirror+file:LIST\nURIs: http://a.example/debian-security\n", "http://a.example/debian\nhttp://b.example/debian\n"},
	} {
		dir := t.TempDir()
		list := filepath.Join(dir, "list")
		text := strings.ReplaceAll(c.text, "LIST", list)
		for file, content := range map[string]string{filepath.Join(dir, "sources.list.d", c.file): text, list: c.list} {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := machineMirrors(dir)
		if err != nil || got["debian"] != "http://a.example/debian" || got["debian-security"] != "http://a.example/debian-security" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := machineMirrors(t.TempDir()); err == nil || !strings.Contains(err.Error(), "--mirror") {
		t.Errorf("no sources: %v", err)
	}
}

func TestAptAnswersAreReadWithEpochsAndEscapes(t *testing.T) {
	a := apt{sources: []aptSource{{archive: "debian", url: "http://m.example/debian"}, {archive: "debian-security", url: "http://m.example/debian-security"}}}
	sum := strings.Repeat("0", 64)
	out := "Reading package lists...\n" +
		"'http://m.example/debian/pool/main/s/shadow/passwd_4.17.4-2_amd64.deb' passwd_1%3a4.17.4-2_amd64.deb 9 SHA256:" + sum + "\n" +
		"'http://m.example/debian-security/pool/updates/main/o/x/x_3.5.7-1%7edeb13u3%2bb1_amd64.deb' x_3.5.7-1~deb13u3+b1_amd64.deb 8 SHA256:" + sum + "\n"
	got, err := a.parse(lock.Root, []byte(out))
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if got[0].Version != "1:4.17.4-2" || got[0].Path != "debian/pool/main/s/shadow/passwd_4.17.4-2_amd64.deb" {
		t.Errorf("%+v", got[0])
	}
	if got[1].Version != "3.5.7-1~deb13u3+b1" || got[1].Path != "debian-security/pool/updates/main/o/x/x_3.5.7-1~deb13u3+b1_amd64.deb" {
		t.Errorf("%+v", got[1])
	}
	if _, err := a.parse(lock.Root, []byte("'http://m.example/debian/x.deb' x_1_all.deb 9 MD5Sum:00\n")); err == nil {
		t.Error("a package without SHA-256 was accepted")
	}
}

func TestMkosiNeedsAFolderWithoutSpaces(t *testing.T) {
	store := cache.Store{Root: filepath.Join(t.TempDir(), "with a space")}
	if _, err := openMkosi(t.Context(), Options{Store: store}, lock.Lock{}); err == nil || !strings.Contains(err.Error(), "HULLMARK_CACHE") {
		t.Errorf("got %v", err)
	}
}
