package needs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hullmark/hullmark"

// computed are the programs that are started by a name that is not in the call: the file and the expression, and what it stands for. A
// program that is named here has to be in the table, too.
var computed = map[string]struct {
	programs []string
	why      string
}{
	"image/build/apt.go: argv[0]": {[]string{"apt-get"}, "its callers name it"},
	"image/build/kubernetes_images.go: filepath.Join(b.home, \"bin\", \"kubeadm\")": {nil, "the bundle's, which was compiled"},
	"image/build/kubernetes_versions.go: filepath.Join(bin, \"etcd\")":              {nil, "the bundle's, which was compiled"},
	"image/build/kubernetes_versions.go: filepath.Join(bin, \"kubeadm\")":           {nil, "the bundle's, which was compiled"},
	"image/build/otherday.go: program":                                              {[]string{"linux.uml"}, "it was looked for before"},
	"image/build/release.go: program":                                               {nil, "the program that was compiled"},
	"image/build/sandbox.go: program":                                               {[]string{"bwrap", "unshare"}, "its callers name it"},
	"internal/needs/look.go: \"docker-credential-\" + helper":                       {nil, "Docker's configuration names it"},
	"internal/needs/look.go: m.path(name)":                                          {nil, "the table names it"},
	"internal/needs/look.go: name":                                                  {nil, "the table names it"},
	"internal/needs/look.go: path":                                                  {[]string{"go"}, "it was looked for before"},
	"internal/vm/toolset.go: name":                                                  {[]string{"qemu-system-x86_64", "swtpm", "swtpm_setup", "swtpm_localca"}, "its callers name it"},
	"internal/vm/toolset.go: program":                                               {nil, "it was looked for before"},
	"kubeadm/run/dns.go: program":                                                   {nil, "the image's kubeadm"},
	"kubeadm/run/flags.go: filepath.Join(bin, program)":                             {nil, "the image's programs"},
	"kubeadm/run/render.go: program":                                                {nil, "the image's kubeadm"},
	"kubeadm/run/stored.go: program":                                                {nil, "the image's kubeadm"},
	"kubeadm/run/validate.go: program":                                              {nil, "the image's kubeadm"},
}

// ofTheTree are the programs that the sandbox runs out of the tools tree. It also runs tar, out of the machine's own root.
var ofTheTree = []string{"/go/bin/go", "fsck.erofs", "prlimit", "xz"}

// inScripts are the programs that are named in text for a shell alone.
var inScripts = []string{"ip", "mount", "/usr/bin/python3"}

// notStarted are entries that are told by the program that others start.
var notStarted = map[string]string{"newuidmap": "unshare and mkosi start it"}

// TestEveryProgramIsInTheTable finds every program that the code of hullmark starts, and wants it in the table, and nothing else there.
func TestEveryProgramIsInTheTable(t *testing.T) {
	s := programs{set: token.NewFileSet(), started: map[string]string{}, met: map[string]bool{}}
	for _, dir := range reachable(t) {
		s.scan(t, dir)
	}
	if len(s.started) < 15 {
		t.Fatalf("only %d programs were found", len(s.started))
	}
	known := map[string]bool{}
	for _, n := range table {
		known[n.What] = true
	}
	for name, at := range s.started {
		if name == "/bin/sh" {
			name = "sh"
		}
		if !known[name] && !slices.Contains(ofTheTree, name) {
			t.Errorf("%s starts %s, which is not in the table", at, name)
		}
	}
	for expression := range computed {
		if !s.met[expression] {
			t.Errorf("nothing starts %s", expression)
		}
	}
	for _, name := range ofTheTree {
		if s.started[name] == "" && !s.literals[name] {
			t.Errorf("nothing starts %s", name)
		}
	}
	for _, n := range table {
		if !isProgram(n) {
			continue
		}
		named := slices.ContainsFunc(inScripts, func(name string) bool { return name == n.What && s.inText(name) })
		if s.started[n.What] == "" && !named && notStarted[n.What] == "" {
			t.Errorf("%s is in the table, and nothing starts it", n.What)
		}
	}
}

// presumed are packages that make setup leaves out: every machine that compiles has them, or people choose how they get them.
var presumed = []string{"apt", "dash", "dpkg", "git", "golang-go", "libc-bin", "mount", "util-linux"}

// make setup installs what the table names.
func TestPackagesAreSetUp(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(makefile), "HOST_PACKAGES :=")
	list, _, _ = strings.Cut(list, "\n\n")
	setUp := strings.Fields(list)
	for _, n := range table {
		for _, p := range n.Packages {
			if !slices.Contains(setUp, p) && !slices.Contains(presumed, p) {
				t.Errorf("%s brings %s, and make setup does not install it", p, n.What)
			}
		}
	}
}

// programs are those that code starts, with a place where it does.
type programs struct {
	set     *token.FileSet
	started map[string]string
	// met are the expressions of computed that were met.
	met map[string]bool
	// literals are all texts of the code.
	literals map[string]bool
}

// isProgram tells whether an entry of the table is looked for as a program, which its name shows.
func isProgram(n Need) bool {
	if strings.HasPrefix(n.What, "/") {
		return strings.Contains(n.What, "/bin/")
	}
	return !strings.ContainsAny(n.What, " ") && n.What == strings.ToLower(n.What)
}

// inText tells whether a text of the code has the word.
func (s *programs) inText(word string) bool {
	for text := range s.literals {
		if slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n`'\"();&|", r) }), word) {
			return true
		}
	}
	return false
}

// reachable lists the folders of the packages of ours that hullmark is built of.
func reachable(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}} {{.Dir}}{{end}}", module+"/tools/hullmark").Output()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for line := range strings.Lines(string(out)) {
		if path, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok && (path == module || strings.HasPrefix(path, module+"/")) {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) < 30 {
		t.Fatalf("hullmark is built of %d packages", len(dirs))
	}
	return dirs
}

// scan finds the programs that a package starts.
func (s *programs) scan(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	constants, files := map[string]string{}, map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(s.set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = file
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
				for i, value := range spec.Values {
					if text, ok := literal(value); ok {
						constants[spec.Names[i].Name] = text
					}
				}
			}
			return true
		})
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range files {
		at, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				s.text(n)
			case *ast.CallExpr:
				s.call(t, filepath.ToSlash(at), n, constants)
			}
			return true
		})
	}
}

func (s *programs) text(n *ast.BasicLit) {
	if s.literals == nil {
		s.literals = map[string]bool{}
	}
	if text, ok := literal(n); ok {
		s.literals[text] = true
	}
}

// call notes the program if the call starts or looks for one.
func (s *programs) call(t *testing.T, at string, call *ast.CallExpr, constants map[string]string) {
	t.Helper()
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	var argument ast.Expr
	of, isName := f.X.(*ast.Ident)
	fromExec := isName && of.Name == "exec"
	switch {
	case fromExec && (f.Sel.Name == "Command" || f.Sel.Name == "LookPath") && len(call.Args) > 0:
		argument = call.Args[0]
	case fromExec && f.Sel.Name == "CommandContext" && len(call.Args) > 1:
		argument = call.Args[1]
	case !fromExec && f.Sel.Name == "Command" && len(call.Args) > 1: // of a sandbox
		if text, ok := literal(call.Args[1]); ok {
			s.started[text] = at
		}
		return
	default:
		return
	}
	if text, ok := literal(argument); ok {
		s.started[text] = at
		return
	}
	expression := types.ExprString(argument)
	if text, ok := constants[expression]; ok {
		s.started[text] = at
		return
	}
	meant, ok := computed[at+": "+expression]
	if !ok {
		t.Errorf("%s starts %s: which program is it? Say it in computed, and in the table if the machine has to bring it", s.set.Position(call.Pos()), expression)
		return
	}
	s.met[at+": "+expression] = true
	for _, name := range meant.programs {
		s.started[name] = at
	}
}

// literal is a text that stands in the code.
func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}
