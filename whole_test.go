package hullmark_test

import (
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writesItself are the files of programs that may write files without internal/atomicfile, and why.
var writesItself = map[string]string{
	"kubeadm/run/run.go":                   "a folder of kubeadm's documents in memory, gone when kubeadm ends",
	"kubeadm/run/stored.go":                "a folder of its own for one call of kubeadm",
	"firstboot/statedisk/volume/volume.go": "the header's copy in memory, for libcryptsetup",
	"image/build/apt.go":                   "a folder of its own for one choice",
	"image/build/base.go":                  "fills a step's folder, which internal/cache makes whole",
	"image/build/compare.go":               "a folder of its own for one comparison",
	"image/build/copy.go":                  "fills a copy that is a step's or a test's",
	"image/build/erofs.go":                 "fills a step's folder, which internal/cache makes whole",
	"image/build/initrd.go":                "fills a step's folder, which internal/cache makes whole",
	"image/build/kubernetes_images.go":     "fills a step's folder, which internal/cache makes whole",
	"image/build/otherday.go":              "a folder of its own for one build",
	"image/build/repository.go":            "fills a step's folder, which internal/cache makes whole",
	"image/build/reuse.go":                 "fills a step's folder, which internal/cache makes whole",
	"image/build/tools.go":                 "fills a step's folder, which internal/cache makes whole",
	"image/build/tree.go":                  "fills a step's folder, which internal/cache makes whole",
	"internal/vm/console.go":               "a log, which grows; the last boot's is kept under another name",
	"tools/hullmark/init.go":               "an empty file that shows that one can be made here, removed at once",
	"tools/hullmark/learn.go":              "a blank disk in a folder of its own",
	"tools/site/main.go":                   "fills the site's folder, which internal/atomicfile makes whole",
	"tools/kubernetes/flannel/cni.go":      "a module of its own, whose sums the lock holds; its file is in memory, and of this boot alone",
}

// writers are what makes a file under its name, or gives one its name.
var writers = []string{"os.Rename", "os.CreateTemp", "os.WriteFile", "os.Create", "unix.Renameat", "unix.Renameat2", "syscall.Rename", "os.Link", "root.Rename", "root.WriteFile", "root.Create"}

// TestWholeFilesAreWrittenInOnePlace holds all programs to internal/atomicfile, which leaves the earlier file or the new one
// and follows no link.
func TestWholeFilesAreWrittenInOnePlace(t *testing.T) {
	set, files := parseFiles(t, writesDevelopers)
	used := map[string]bool{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !slices.Contains(writers, selected(call.Fun)) {
				return true
			}
			at := filepath.ToSlash(set.Position(call.Pos()).Filename)
			if strings.HasPrefix(at, "internal/atomicfile/") {
				return true
			}
			used[at] = true
			if writesItself[at] == "" {
				t.Errorf("%s: %s: a whole file is written by internal/atomicfile", set.Position(call.Pos()), selected(call.Fun))
			}
			return true
		})
	}
	for at := range writesItself {
		if !used[at] {
			t.Errorf("%s is excepted, and writes nothing by itself", at)
		}
	}
}

// writesDevelopers tells whether a file is of what runs beside the tests only, and of no program that is given to people.
func writesDevelopers(at string) bool {
	if strings.HasPrefix(at, "internal/") {
		return !strings.HasPrefix(at, "internal/cache/") && !strings.HasPrefix(at, "internal/vm/")
	}
	return strings.HasPrefix(at, "tools/demo/") || strings.HasPrefix(at, "tools/capi/demo/")
}

// selected is "package.Name" of what is called.
func selected(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return last(s.X) + "." + s.Sel.Name
	}
	return ""
}

// TestNothingLargeIsKept keeps out of the repository what somebody built in passing: each clone carries it forever.
func TestNothingLargeIsKept(t *testing.T) {
	const most = 512 << 10
	list, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.FieldsFunc(string(list), func(r rune) bool { return r == 0 }) {
		s, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if s.Size() > most {
			t.Errorf("%s has %d bytes, want at most %d", path, s.Size(), most)
		}
	}
}
