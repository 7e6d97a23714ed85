package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/lukstest"
)

// Whoever has the disk's key can write a record B for any header. Each field's every hostile value is refused before libcryptsetup sees it.
func TestMutantsUnderTheRightKey(t *testing.T) {
	headers, err := os.ReadFile("../../luks2/testdata/header.bin")
	if err != nil {
		t.Fatal(err)
	}
	area := make([]byte, luks2.AreaSize)
	copy(area, headers)
	good, err := luks2.Decode(area)
	if err != nil {
		t.Fatal(err)
	}
	g := hullmark.DiskGrant{Key: hullmark.NewSecret([]byte("a key of thirty-two plain bytes!")), Generation: 1, Owner: hullmark.EKID{7}}
	if g.UUID, err = hullmark.ParseUUID(good.UUID); err != nil {
		t.Fatal(err)
	}
	keys, err := statedisk.DeriveKeys(g.Key)
	if err != nil {
		t.Fatal(err)
	}
	ready := statedisk.Ready{Identity: statedisk.Identity{UUID: g.UUID, Generation: 1, Owner: g.Owner}}
	check := func(headers []byte) error {
		copy(area, headers)
		return checkReady(statedisk.EncodeB(ready, area, keys.Header), area, ready, g, keys)
	}
	if err := check(headers); err != nil {
		t.Fatalf("the good header: %v", err)
	}
	refused := 0
	for m := range lukstest.Fields(headers) {
		err := check(m.Header)
		var c *hullmark.Condition
		switch {
		case errors.As(err, &c) && c.Code == "disk-tampered" && strings.HasPrefix(c.Title, "decode LUKS2 header: "):
			refused++
		case err != nil:
			t.Errorf("%s, %.80s: %v", m.Field, m.Value, err)
		default:
			if err := lukstest.Equivalent(m.Header, headers); err != nil {
				t.Errorf("%s, %.80s: accepted, but %v", m.Field, m.Value, err)
			}
		}
	}
	t.Logf("%d refused", refused)
	if refused < 1000 {
		t.Errorf("only %d mutants were refused", refused)
	}
}

// newTree is the file system of a disk that was just formatted.
func newTree(t *testing.T, g hullmark.DiskGrant, key hullmark.Secret) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	if err := makeTree(root, g.UUID, 0, key); err != nil {
		t.Fatal(err)
	}
	return root
}

func manifestKey(t *testing.T) hullmark.Secret {
	t.Helper()
	key, err := statedisk.ManifestKey(hullmark.NewSecret([]byte("a key of thirty-two plain bytes!")))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A disk is let in at an epoch of the ticket's window, and is then at the ticket's own: an older copy of it is none of these.
func TestAdvance(t *testing.T) {
	key, g := manifestKey(t), hullmark.DiskGrant{UUID: hullmark.UUID{7}}
	root := newTree(t, g, key)
	for _, c := range []struct {
		epoch hullmark.EpochWindow
		read  uint64 // by a legal one
		says  string // empty for those
	}{
		{epoch: hullmark.EpochWindow{Committed: 0, Issued: 1}},
		{epoch: hullmark.EpochWindow{Committed: 0, Issued: 1}, says: "0 ≤ epoch < 1, got 1"},
		{epoch: hullmark.EpochWindow{Committed: 2, Issued: 3}, says: "2 ≤ epoch < 3, got 1"},
		{epoch: hullmark.EpochWindow{Committed: 1, Issued: 3}, read: 1},
		{epoch: hullmark.EpochWindow{Unchecked: true}, read: 3},
		{epoch: hullmark.EpochWindow{Committed: 3, Issued: 4}, read: 3},
	} {
		g.Epoch = c.epoch
		opened, err := advanceIn(root, g, key)
		if c.says == "" {
			if err != nil || opened.EpochRead != c.read {
				t.Errorf("%+v: read %d, %v; want %d", c.epoch, opened.EpochRead, err, c.read)
			}
			if _, code, err := statedisk.ReadManifest(root, key); err != nil || code != opened.Manifest {
				t.Errorf("%+v: the disk holds another manifest than was told: %v", c.epoch, err)
			}
			continue
		}
		var condition *hullmark.Condition
		if !errors.As(err, &condition) || condition.Code != "rollback-detected" || condition.Expected+", got "+condition.Got != c.says || condition.Next == "" {
			t.Errorf("%+v: %v, want %q", c.epoch, err, c.says)
		}
	}
}

// The host holds back the manifest alone, or exchanges it: the disk is opened only with the one that its node wrote last.
func TestManifestOfAnotherTime(t *testing.T) {
	key, g := manifestKey(t), hullmark.DiskGrant{UUID: hullmark.UUID{7}, Epoch: hullmark.EpochWindow{Issued: 1}}
	root := newTree(t, g, key)
	if _, err := advanceIn(root, g, key); err != nil {
		t.Fatal(err)
	}
	old, err := root.ReadFile(statedisk.ManifestFile)
	if err != nil {
		t.Fatal(err)
	}
	g.Epoch = hullmark.EpochWindow{Committed: 1, Issued: 2}
	if _, err := advanceIn(root, g, key); err != nil {
		t.Fatal(err)
	}
	newest, err := root.ReadFile(statedisk.ManifestFile)
	if err != nil {
		t.Fatal(err)
	}
	another := newTree(t, hullmark.DiskGrant{UUID: hullmark.UUID{8}}, key)
	others, err := another.ReadFile(statedisk.ManifestFile)
	if err != nil {
		t.Fatal(err)
	}
	changed := append([]byte(nil), newest...)
	changed[43]++ // the epoch
	g.Epoch = hullmark.EpochWindow{Committed: 2, Issued: 3}
	for name, c := range map[string]struct {
		content []byte
		code    string
	}{
		"an old one":               {old, "rollback-detected"},
		"another disk's":           {others, "manifest-refused"},
		"one with another epoch":   {changed, "manifest-refused"},
		"half of it":               {newest[:40], "manifest-refused"},
		"none":                     {nil, "manifest-refused"},
		"an empty one":             {[]byte{}, "manifest-refused"},
		"the epoch file of old":    {[]byte("2\n"), "manifest-refused"},
		"the newest with an addon": {append(append([]byte(nil), newest...), 0), "manifest-refused"},
	} {
		if err := root.RemoveAll(statedisk.ManifestFile); err != nil {
			t.Fatal(err)
		}
		if c.content != nil {
			if err := root.WriteFile(statedisk.ManifestFile, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var condition *hullmark.Condition
		for _, unchecked := range []bool{false, true} {
			g.Epoch.Unchecked = unchecked
			if _, err := advanceIn(root, g, key); (!unchecked || c.code == "manifest-refused") && (!errors.As(err, &condition) || condition.Code != c.code) {
				t.Errorf("%s, unchecked %v: %v, want %s", name, unchecked, err, c.code)
			}
		}
	}
	g.Epoch.Unchecked = false
	if err := root.WriteFile(statedisk.ManifestFile, newest, 0o600); err != nil {
		t.Fatal(err)
	}
	if opened, err := advanceIn(root, g, key); err != nil || opened.EpochRead != 2 {
		t.Errorf("the newest: %+v, %v", opened, err)
	}
}

// Links on the disk lead the helper, which is root, to no file outside of it, nor let it write over another one on it.
func TestHelperFollowsNoLinkOffTheDisk(t *testing.T) {
	key, g := manifestKey(t), hullmark.DiskGrant{UUID: hullmark.UUID{7}, Epoch: hullmark.EpochWindow{Issued: 1}}
	outside := filepath.Join(t.TempDir(), "outside")
	for name, spoil := range map[string]func(dir string) error{
		"the temporary file":  func(dir string) error { return os.Symlink(outside, filepath.Join(dir, "hullmark/.manifest.new")) },
		"one within the disk": func(dir string) error { return os.Symlink("../var/kept", filepath.Join(dir, "hullmark/.manifest.new")) },
		"a folder in the way": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "hullmark/.manifest.new/x"), 0o700) },
	} {
		root := newTree(t, g, key)
		for _, file := range []string{outside, filepath.Join(root.Name(), "var/kept")} {
			if err := os.WriteFile(file, []byte("own"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := spoil(root.Name()); err != nil {
			t.Fatal(err)
		}
		if _, err := advanceIn(root, g, key); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, file := range []string{outside, filepath.Join(root.Name(), "var/kept")} {
			if text, err := os.ReadFile(file); err != nil || string(text) != "own" {
				t.Errorf("%s: %s holds %q, %v", name, file, text, err)
			}
		}
	}
	for name, spoil := range map[string]func(dir string) error{
		"the folder": func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "hullmark"), outside+".dir"), os.Symlink(outside+".dir", filepath.Join(dir, "hullmark")))
		},
		"the manifest": func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "hullmark/manifest"), outside+".kept"), os.Symlink(outside+".kept", filepath.Join(dir, "hullmark/manifest")))
		},
		"a pipe": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "hullmark/manifest")), syscall.Mkfifo(filepath.Join(dir, "hullmark/manifest"), 0o600))
		},
	} {
		root := newTree(t, g, key)
		if err := spoil(root.Name()); err != nil {
			t.Fatal(err)
		}
		var c *hullmark.Condition
		if _, err := advanceIn(root, g, key); !errors.As(err, &c) || c.Code != "manifest-refused" {
			t.Errorf("%s is a link, or worse: %v, want manifest-refused", name, err)
		}
	}
}

// TestFoldersThatAreNone: a folder that is bound or mounted over, and is none, is refused before anything is mounted on it.
func TestFoldersThatAreNone(t *testing.T) {
	key, g := manifestKey(t), hullmark.DiskGrant{UUID: hullmark.UUID{7}, Epoch: hullmark.EpochWindow{Issued: 1}}
	for name, c := range map[string]struct {
		file string
		make func(file string) error
		want string
	}{
		"pods":               {"var/lib/kubelet/pods", link("../../../hullmark"), "folder-refused"},
		"the kubelet's":      {"var/lib/kubelet", link("containerd"), "folder-refused"},
		"containerd's":       {"var/lib/containerd", link("/usr/bin"), "folder-refused"},
		"etcd's":             {"var/lib/etcd", link("nowhere"), "folder-refused"},
		"CNI's":              {"var/lib/cni", link("containerd"), "folder-refused"},
		"var":                {"var", link("hullmark"), "folder-refused"},
		"etc-kubernetes":     {"etc-kubernetes", link("var"), "folder-refused"},
		"a pipe":             {"var/lib/etcd", func(file string) error { return syscall.Mkfifo(file, 0o600) }, "folder-refused"},
		"a file":             {"var/lib/etcd", func(file string) error { return os.WriteFile(file, nil, 0o600) }, "folder-refused"},
		"a link of a pod's":  {"var/lib/kubelet/pods/own", link("/etc"), ""},
		"no folder for CNI":  {"var/lib/cni", func(string) error { return nil }, ""},
		"a member taken out": {"var/lib/etcd", func(string) error { return nil }, ""},
		"the journal":        {"journal", link("var"), "folder-refused"},
		"the journal's": {"var/log/journal", func(file string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Symlink("/usr", file))
		}, "folder-refused"},
		"logs":               {"var/log", link("../hullmark"), "folder-refused"},
		"CNI's of last boot": {"var/lib/cni", func(file string) error { return os.Mkdir(file, 0o700) }, ""},
	} {
		root := newTree(t, g, key)
		file := filepath.Join(root.Name(), c.file)
		if err := errors.Join(os.RemoveAll(file), c.make(file)); err != nil {
			t.Fatal(err)
		}
		_, err := advanceIn(root, g, key)
		var condition *hullmark.Condition
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &condition) || condition.Code != c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func link(target string) func(string) error {
	return func(file string) error { return os.Symlink(target, file) }
}
