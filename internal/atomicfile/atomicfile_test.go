package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	before := func(dir string) error { return os.WriteFile(filepath.Join(dir, "file"), []byte("before"), 0o640) }
	content := []byte(strings.Repeat("after", 1000))
	file := func(dir string) string { return filepath.Join(dir, "file") }
	fulldisk.Check(t,
		fulldisk.Writer{Name: "Write", Before: before, Write: func(dir string) error { return Write(file(dir), content, 0o600) }},
		fulldisk.Writer{Name: "Create", Write: func(dir string) error { return Create(file(dir), content, 0o600) }},
		fulldisk.Writer{Name: "WriteIn", Before: before, Write: func(dir string) error {
			root, err := os.OpenRoot(dir)
			if err != nil {
				return err
			}
			defer root.Close()
			return WriteIn(root, "file", content, 0o600)
		}},
		fulldisk.Writer{
			Name: "Resume", Part: "file.part", Before: before, Write: func(dir string) error {
				return Resume(file(dir), 0o600, func(f *os.File) error {
					if err := f.Truncate(0); err != nil {
						return err
					}
					_, err := f.WriteAt(content, 0)
					return err
				})
			},
		},
		fulldisk.Writer{Name: "Folder", Write: func(dir string) error {
			return Folder(filepath.Join(dir, "folder"), 0o755, func(made string) error { return os.WriteFile(filepath.Join(made, "file"), content, 0o600) })
		}},
	)
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	for _, content := range []string{"first", "", "second"} {
		if err := Write(file, []byte(content), 0o604); err != nil {
			t.Fatal(err)
		}
		wantFile(t, file, content, 0o604)
	}
	if err := Create(file, []byte("x"), 0o600); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "write "+file+": ") {
		t.Errorf("over what is there: %v", err)
	}
	if err := Create(file+"2", []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	refused := errors.New("not this one")
	if err := Stream(file, Options{Mode: 0o600, Check: func() error { return refused }}, bytesOf([]byte("x"))); !errors.Is(err, refused) {
		t.Errorf("refused by its check: %v", err)
	}
	if err := Stream(file, Options{Mode: 0o600}, func(*os.File) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("what fills it failed: %v", err)
	}
	wantFile(t, file, "second", 0o604)
	wantNames(t, dir, "file", "file2")
	if err := Write(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "make the folder "+dir+"/none first") {
		t.Errorf("without a folder: %v", err)
	}
}

// TestNeverThroughALink has links, a hard link and a FIFO where a file and its temporary go: what they lead to stays as it is.
func TestNeverThroughALink(t *testing.T) {
	for name, place := range map[string]func(other, at string) error{
		"link": os.Symlink, "second name": os.Link, "dangling link": func(_, at string) error { return os.Symlink("nothing", at) },
		"FIFO": func(_, at string) error { return syscall.Mkfifo(at, 0o600) },
	} {
		dir := t.TempDir()
		other, file := filepath.Join(dir, "other"), filepath.Join(dir, "file")
		if err := errors.Join(os.WriteFile(other, []byte("another's"), 0o600), place(other, filepath.Join(dir, ".file.new"))); err != nil {
			t.Fatal(err)
		}
		if name != "FIFO" {
			if err := place(other, file); err != nil {
				t.Fatal(err)
			}
		}
		if err := Write(file, []byte("mine"), 0o640); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantFile(t, other, "another's", 0o600)
		wantFile(t, file, "mine", 0o640)
		wantNames(t, dir, "file", "other")
	}
	for _, kind := range []func(string) error{func(at string) error { return os.Mkdir(at, 0o700) }, func(at string) error { return syscall.Mkfifo(at, 0o600) }} {
		dir := t.TempDir()
		if err := kind(filepath.Join(dir, "file")); err != nil {
			t.Fatal(err)
		}
		if err := Write(filepath.Join(dir, "file"), nil, 0o600); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("over what is no file: %v", err)
		}
	}
}

// TestOutOfARoot has a link lead out of a root.
func TestOutOfARoot(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "out")), os.Mkdir(filepath.Join(dir, "in"), 0o700)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := WriteIn(root, "out/file", []byte("x"), 0o600); err == nil {
		t.Error("it wrote through a link out of its root")
	}
	wantNames(t, outside)
	if err := WriteIn(root, "in/file", []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	wantFile(t, filepath.Join(dir, "in/file"), "x", 0o600)
}

// TestTwoWriters has many write one name at once, each whole, and one find what a killed one left.
func TestTwoWriters(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(filepath.Join(dir, ".file.new"), []byte(strings.Repeat("left", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	made := 0 // Held apart by the name alone.
	for range 50 {
		group.Go(func() {
			err := Stream(file, Options{Mode: 0o600, Check: func() error { made++; return nil }}, func(f *os.File) error {
				_, err := f.WriteString("whole")
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if made != 50 {
		t.Errorf("of 50 writers %d were seen", made)
	}
	wantFile(t, file, "whole", 0o600)
	wantNames(t, dir, "file")
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "folder")
	left := filepath.Join(dir, ".folder.new", "deep")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	problem := errors.New("half of it")
	fill := func(made string) error {
		return errors.Join(os.Mkdir(filepath.Join(made, "sub"), 0o700), os.WriteFile(filepath.Join(made, "sub/file"), []byte("x"), 0o600))
	}
	if err := Folder(folder, 0o755, func(made string) error { return errors.Join(fill(made), problem) }); !errors.Is(err, problem) {
		t.Errorf("half of it: %v", err)
	}
	wantNames(t, dir)
	if err := Folder(folder, 0o755, fill); err != nil {
		t.Fatal(err)
	}
	wantFile(t, filepath.Join(folder, "sub/file"), "x", 0o600)
	if err := Folder(folder, 0o755, fill); err == nil {
		t.Error("it replaced a folder that holds something")
	}
	wantNames(t, dir, "folder")
}

func TestMove(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := errors.Join(os.WriteFile(from, []byte("new"), 0o600), os.WriteFile(to, []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := Move(filepath.Join(dir, "none"), to); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	wantFile(t, to, "old", 0o600)
	if err := Move(from, to); err != nil {
		t.Error(err)
	}
	wantFile(t, to, "new", 0o600)
	wantNames(t, dir, "to")
}

// TestMoveFollowsNoLink has a link where the finished file should be, and somebody else's file behind it.
func TestMoveFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	other, from, to := filepath.Join(dir, "other"), filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := errors.Join(os.WriteFile(other, []byte("another's"), 0o600), os.Symlink(other, from), os.WriteFile(to, []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := Move(from, to); !errors.Is(err, errKind) {
		t.Errorf("of a link: %v", err)
	}
	wantFile(t, to, "old", 0o600)
	wantFile(t, other, "another's", 0o600)
}

// TestFolderFollowsNoLink has somebody put a link to his own folder in the way, while the folder is filled by its path.
func TestFolderFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	parent, aside, his := filepath.Join(dir, "parent"), filepath.Join(dir, "aside"), filepath.Join(dir, "his")
	if err := errors.Join(os.Mkdir(parent, 0o700), os.MkdirAll(filepath.Join(his, ".folder.new"), 0o700)); err != nil {
		t.Fatal(err)
	}
	err := Folder(filepath.Join(parent, "folder"), 0o700, func(made string) error {
		return errors.Join(os.Rename(parent, aside), os.Symlink(his, parent), os.WriteFile(filepath.Join(made, "file"), []byte("x"), 0o600))
	})
	if err == nil || !strings.Contains(err.Error(), "a link was put in its way") {
		t.Errorf("what was written went elsewhere: %v", err)
	}
	wantNames(t, aside)
	if err := errors.Join(os.Remove(parent), os.Rename(aside, parent)); err != nil {
		t.Fatal(err)
	}
	if err := Folder(filepath.Join(parent, "folder"), 0o700, func(made string) error { return os.WriteFile(filepath.Join(made, "file"), []byte("x"), 0o600) }); err != nil {
		t.Errorf("after that: %v", err)
	}
	wantFile(t, filepath.Join(parent, "folder/file"), "x", 0o600)
}

func TestResume(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	half := func(text string, err error) func(*os.File) error {
		return func(f *os.File) error {
			_, seekErr := f.Seek(0, 2)
			_, writeErr := f.WriteString(text)
			return errors.Join(seekErr, writeErr, err)
		}
	}
	gone := errors.New("the connection went away")
	if err := Resume(file, 0o644, half("ha", gone)); !errors.Is(err, gone) {
		t.Error(err)
	}
	wantFile(t, Part(file), "ha", 0o600)
	if err := Resume(file, 0o644, half("lf", nil)); err != nil {
		t.Error(err)
	}
	wantFile(t, file, "half", 0o644)
	if err := Resume(file, 0o644, half("wrong", ErrUseless)); !errors.Is(err, ErrUseless) {
		t.Error(err)
	}
	wantFile(t, file, "half", 0o644)
	wantNames(t, dir, "file")
}

// TestResumeRefuses has other things than what an earlier attempt left where the part goes.
func TestResumeRefuses(t *testing.T) {
	for name, place := range map[string]func(other, at string) error{
		"it is a link": os.Symlink, "it has a second name": os.Link, "it is no regular file": func(_, at string) error { return syscall.Mkfifo(at, 0o600) },
	} {
		dir := t.TempDir()
		other, file := filepath.Join(dir, "other"), filepath.Join(dir, "file")
		if err := errors.Join(os.WriteFile(other, []byte("another's"), 0o600), place(other, Part(file))); err != nil {
			t.Fatal(err)
		}
		if err := Resume(file, 0o644, func(f *os.File) error { _, err := f.WriteString("mine"); return err }); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		wantFile(t, other, "another's", 0o600)
		wantNames(t, dir, "file.part", "other")
	}
	info, err := os.Stat(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := ownFile(info); err != nil {
		t.Errorf("this user's own: %v", err)
	}
	info.Sys().(*syscall.Stat_t).Uid++
	if err := ownFile(info); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("another user's: %v", err)
	}
}

func wantFile(t *testing.T, name, want string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil || string(got) != want {
		t.Errorf("%s: %.40q, want %.40q: %v", name, got, want, err)
	}
	if info, err := os.Lstat(name); err != nil || info.Mode() != mode {
		t.Errorf("%s: %v, want %v: %v", name, info.Mode(), mode, err)
	}
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %q, want %q: %v", dir, got, want, err)
	}
}
