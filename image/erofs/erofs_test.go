package erofs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/tooltest"
)

var (
	at   = time.Unix(1_700_000_000, 0)
	uuid = [16]byte{1, 2, 3, 15: 16}
)

func folder(name string) File { return File{Name: name, Mode: fs.ModeDir | 0o755} }

func symlink(name, to string) File {
	return File{Name: name, Mode: fs.ModeSymlink | 0o777, Link: to}
}

func regular(name string, content []byte) File {
	return File{Name: name, Mode: 0o644, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
}

// tree has files of every kind, and of many sizes and contents.
func tree(seed uint64) []File {
	r := rand.New(rand.NewPCG(seed, 2))
	sticky := folder("empty")
	sticky.Mode |= fs.ModeSticky
	files := []File{
		folder("."), sticky, folder("many"), folder("\x01odd \xff\n"), folder("a"), folder("a/b"), folder("a/b/c"),
		regular("zeros", make([]byte, 9<<20+5)), symlink("a/short", "b/c"), symlink("a/long", strings.Repeat("x/", 2000)), symlink("a/longer", strings.Repeat("y/", 1500)),
		regular("\x01odd \xff\n/-", []byte("-")), regular("\x01odd \xff\n/"+strings.Repeat("n", maxName), random(seed, 5000)),
	}
	for n, size := range []int{0, 1, 11, 12, 13, 3007, 3008, 3009, 4095, 4096, 4097, 8191, 8192, 8193, 65536, 300_000} {
		noise := make([]byte, size)
		for i := range noise {
			noise[i] = byte(r.Uint32())
		}
		files = append(files, regular(fmt.Sprintf("a/noise%d", n), noise), regular(fmt.Sprintf("a/mixed%d", n), random(seed+uint64(n), size)),
			regular(fmt.Sprintf("a/b/alike%d", n), bytes.Repeat([]byte("alike "), size/6)))
	}
	for n := range 1500 + r.IntN(1500) {
		files = append(files, regular(fmt.Sprintf("many/%x", n*n), random(seed, r.IntN(200))))
	}
	for n := range 40 {
		files = append(files, regular(fmt.Sprintf("many/larger-%d", n), random(seed+uint64(n), r.IntN(100_000))))
	}
	large := regular("a/large", random(seed, segmentSize*2+r.IntN(segmentSize)))
	large.Mode, large.Same = 0o751, "large"
	other := large
	other.Name = "many/a hard link"
	// Such owners do not fit in the shorter inode.
	owned := regular("a/owned", random(seed, 9000))
	owned.Mode, owned.UID, owned.GID = fs.ModeSetuid|0o751, 70_000, 80_000
	owned.Xattrs = map[string]string{
		"user.a": "value", "trusted.b": "",
		// cap_net_bind_service=p (struct vfs_cap_data), and an access list that says what the mode does (struct posix_acl_xattr_header).
		"security.capability":     "\x00\x00\x00\x02\x00\x04\x00\x00" + strings.Repeat("\x00", 12),
		"system.posix_acl_access": "\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x04\x00\x05\x00\xff\xff\xff\xff\x20\x00\x01\x00\xff\xff\xff\xff",
	}
	return append(files, large, other, owned)
}

func packTree(t testing.TB, files []File, earlier ...*Earlier) (*Image, []byte) {
	t.Helper()
	i, err := Pack(t.Context(), files, at, earlier...)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := i.Write(&b, uuid); err != nil {
		t.Fatal(err)
	}
	if blocks := binary.LittleEndian.Uint32(b.Bytes()[superOffset+36:]); b.Len() != int(blocks)*blockSize {
		t.Fatalf("wrote %d bytes, the superblock says %d blocks", b.Len(), blocks)
	}
	return i, b.Bytes()
}

func writeFile(t *testing.T, image []byte) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// fsck checks an image and unpacks it.
func fsck(t *testing.T, image []byte) (dir string) {
	t.Helper()
	dir, file := filepath.Join(t.TempDir(), "tree"), writeFile(t, image)
	tooltest.Run(t, "erofs-utils", "fsck.erofs", "--extract="+dir, "--preserve-perms", "--no-preserve-owner", file)
	return dir
}

// compare holds what lies in dir to the files.
func compare(t *testing.T, dir string, files []File) {
	t.Helper()
	var found []string
	if err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		found = append(found, rel)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(found) != len(files) {
		t.Errorf("%d files, want %d", len(found), len(files))
	}
	for _, f := range files {
		if err := f.compare(filepath.Join(dir, f.Name)); err != nil {
			t.Errorf("%q: %v", f.Name, err)
		}
	}
}

func (f *File) compare(file string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if info.Mode() != f.Mode || !info.ModTime().Equal(at) {
		return fmt.Errorf("mode %v, time %v, want %v, %v", info.Mode(), info.ModTime(), f.Mode, at)
	}
	switch f.Mode.Type() {
	case fs.ModeSymlink:
		if to, err := os.Readlink(file); err != nil || to != f.Link {
			return fmt.Errorf("points to %q, %w", to, err)
		}
	case 0:
		got, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return f.read(func(r io.Reader) error {
			want, err := io.ReadAll(r)
			if err == nil && !bytes.Equal(got, want) {
				return fmt.Errorf("holds %d other bytes, want %d", len(got), len(want))
			}
			return err
		})
	}
	return nil
}

func TestFsckExtractsTheSame(t *testing.T) {
	for seed := range uint64(2) {
		files := tree(seed)
		_, image := packTree(t, files)
		compare(t, fsck(t, image), files)
	}
}

// TestDumpTellsOwnersLinksAndAttributes asks for what an ordinary user cannot unpack.
func TestDumpTellsOwnersLinksAndAttributes(t *testing.T) {
	_, image := packTree(t, tree(5))
	file := writeFile(t, image)
	for name, want := range map[string][]string{
		"/a/owned":          {"Inode size: 64 ", "Links: 1 ", "Uid: 70000 ", "Gid: 80000 ", "Access: 0751/", "Xattr size: 100\n"},
		"/a/large":          {"Inode size: 32 ", "Links: 2 ", "Uid: 0 ", "Gid: 0 ", "Access: 0751/", "Xattr size: 0\n"},
		"/many/a hard link": {"Inode size: 32 ", "Links: 2 "},
		"/a":                {"Links: 3 ", "Access: 0755/"},
		"/a/b/c":            {"Links: 2 "},
	} {
		got := tooltest.Run(t, "erofs-utils", "dump.erofs", "--path="+name, file)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", name, w, got)
			}
		}
	}
}

func TestBytesDependOnTheTreeAlone(t *testing.T) {
	files := tree(7)
	_, want := packTree(t, files)
	for _, cores := range []int{1, 3} {
		before := runtime.GOMAXPROCS(cores)
		rand.New(rand.NewPCG(uint64(cores), 3)).Shuffle(len(files), func(a, b int) { files[a], files[b] = files[b], files[a] })
		_, got := packTree(t, files)
		runtime.GOMAXPROCS(before)
		if !bytes.Equal(got, want) {
			t.Errorf("with %d cores: other bytes", cores)
		}
	}
}

// opened counts how often files are opened.
func opened(files []File) *[]string {
	var names []string
	for n, f := range files {
		if f.Size > 0 {
			files[n].Open = func() (io.ReadCloser, error) {
				names = append(names, f.Name)
				return f.Open()
			}
		}
	}
	return &names
}

func TestOnlyWhatChangedIsPackedAgain(t *testing.T) {
	files := tree(3)
	first, image := packTree(t, files)
	index, err := first.Index()
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := NewEarlier(index, bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	n := slices.IndexFunc(files, func(f File) bool { return f.Name == "a/mixed15" })
	files[n] = regular("a/mixed15", random(99, 250_000))
	_, cold := packTree(t, files)
	_, warm := packTree(t, files, earlier)
	if !bytes.Equal(cold, warm) {
		t.Error("an image that is built upon an earlier one has other bytes")
	}
	if anew := packedAnew(t, files, earlier); !slices.Equal(anew, []string{"a/mixed15"}) {
		t.Errorf("packed anew: %q", anew)
	}
}

// packedAnew returns which files were packed, though there is an earlier image.
func packedAnew(t *testing.T, files []File, earlier *Earlier) []string {
	t.Helper()
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	files = slices.Clone(files)
	names := opened(files)
	packTree(t, files, earlier)
	count := map[string]int{}
	var anew []string
	for _, n := range *names {
		if count[n]++; count[n] == 2 {
			anew = append(anew, n)
		}
	}
	return anew
}

func TestDamagedEarlierBytesArePackedAgain(t *testing.T) {
	files := []File{folder("."), regular("large", random(1, 200_000)), regular("small", random(2, 2_000)), regular("fine", random(3, 100_000))}
	first, image := packTree(t, files)
	index, err := first.Index()
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(image)
	for _, c := range first.contents {
		switch c.size {
		case 200_000:
			damaged[c.block*blockSize+5000] ^= 1
		case 2_000:
			damaged[c.tailAt+100] ^= 1
		}
	}
	for name, b := range map[string][]byte{"damaged": damaged, "cut": image[:len(image)-blockSize]} {
		earlier, err := NewEarlier(index, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if _, got := packTree(t, files, earlier); !bytes.Equal(got, image) {
			t.Errorf("%s: other bytes", name)
		}
		if name == "damaged" {
			if anew := packedAnew(t, files, earlier); !slices.Equal(anew, []string{"large", "small"}) {
				t.Errorf("packed anew: %q", anew)
			}
		}
	}
	for name, text := range map[string][]byte{
		"cut": index[:len(index)-1], "empty": nil, "changed": bytes.Replace(index, []byte(`"Encoding":"lz4`), []byte(`"Encoding":"lz5`), 1),
	} {
		if _, err := NewEarlier(text, bytes.NewReader(image)); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s index: %v", name, err)
		}
	}
}

// TestIndexThatDoesNotFitIsNotTaken has indexes whose own digest is right, and whose clusters are not those of the file.
func TestIndexThatDoesNotFitIsNotTaken(t *testing.T) {
	files := []File{folder("."), regular("a", random(1, 200_000)), regular("b", bytes.Repeat([]byte("alike "), 40_000))}
	first, image := packTree(t, files)
	for name, forge := range map[string]func(f *indexed){
		"reads more":    func(f *indexed) { f.Clusters[0][0] += blockSize },
		"reads nothing": func(f *indexed) { f.Clusters[0][0] = 0 },
		"reads back":    func(f *indexed) { f.Clusters[0][0] *= -1 },
		"more blocks":   func(f *indexed) { f.Clusters[0][1]++ },
		"no clusters":   func(f *indexed) { f.Clusters = nil },
		"one more":      func(f *indexed) { f.Clusters = append(f.Clusters, f.Clusters[0]) },
	} {
		text, err := first.Index()
		if err != nil {
			t.Fatal(err)
		}
		var x index
		if err := json.Unmarshal(bytes.SplitN(text, []byte("\n"), 2)[1], &x); err != nil {
			t.Fatal(err)
		}
		for n := range x.Files {
			forge(&x.Files[n])
		}
		if text, err = x.encode(); err != nil {
			t.Fatal(err)
		}
		earlier, err := NewEarlier(text, bytes.NewReader(image))
		if err != nil {
			t.Fatal(err)
		}
		if _, got := packTree(t, files, earlier); !bytes.Equal(got, image) {
			t.Errorf("%s: other bytes", name)
		}
	}
}

func TestBadTreesAreNamed(t *testing.T) {
	short, long := regular("a", []byte("abc")), regular("a", []byte("abc"))
	short.Size, long.Size = 4, 2
	linked := func(name string, mode fs.FileMode) File {
		f := regular(name, nil)
		f.Mode, f.Same = mode, "one"
		return f
	}
	xattrs := func(x map[string]string) File { return File{Name: "a", Xattrs: x} }
	for want, files := range map[string][]File{
		`"."`:                                     {},
		`"a/b": there is no folder "a"`:           {regular("a/b", nil)},
		`"a/b": there is no folder`:               {regular("a", nil), regular("a/b", nil)},
		`"a" is there twice`:                      {folder("a"), regular("a", nil)},
		`"/a": want a clean relative path`:        {folder("/a")},
		`"../a": want a clean`:                    {folder("../a")},
		`"a/": want a clean`:                      {folder("a/")},
		`"": want a clean`:                        {folder("")},
		"256 bytes, the format allows 255":        {folder(strings.Repeat("n", 256))},
		`"a": ended 1 bytes before its size of 4`: {short},
		`"a": goes on after its size of 2`:        {long},
		"a folder cannot be a hard link":          {linked("a", fs.ModeDir|0o755)},
		`"b" is to be a hard link to "a"`:         {linked("a", 0o644), linked("b", 0o600)},
		"a symbolic link to 0 bytes":              {symlink("a", "")},
		"a symbolic link to 4096 bytes":           {symlink("a", strings.Repeat("x", 4096))},
		"files of type ?":                         {{Name: "a", Mode: fs.ModeIrregular}},
		"files of type D":                         {{Name: "a", Mode: fs.ModeDevice}},
		"files of type p":                         {{Name: "a", Mode: fs.ModeNamedPipe}},
		"has no content to open":                  {{Name: "a", Size: 1}},
		"-1 bytes long":                           {{Name: "a", Size: -1}},
		`attribute "trousers.x" cannot`:           {xattrs(map[string]string{"trousers.x": "1"})},
		`attribute "user." cannot`:                {xattrs(map[string]string{"user.": "1"})},
		"1036 bytes of extended attributes":       {xattrs(map[string]string{"user.a": strings.Repeat("x", 1019)})},
	} {
		if want != `"."` {
			files = append(files, folder("."))
		}
		if _, err := Pack(t.Context(), files, at); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := Pack(t.Context(), []File{folder(".")}, time.Unix(-1, 0)); err == nil {
		t.Error("a time before 1970 was accepted")
	}
}
