package build

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/cache"
)

// ReleaseArchitectures are those that Hullmark's own program is released for, as GOARCH spells them.
var ReleaseArchitectures = []string{"amd64", "arm64"}

// IsRelease tells whether a version has the form that a tag gives, vMAJOR.MINOR.PATCH, unlike what Go makes of a commit or of a
// changed checkout.
func IsRelease(version string) bool { return releaseVersion.MatchString(version) }

var releaseVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+$`)

// ReleaseOptions say what a release is made of.
type ReleaseOptions struct {
	// Source is the folder of the checkout, and Out that of the release.
	Source, Out string
	// Version is what the program calls itself ("v1.2.3").
	Version string
	// Architectures are those that it is for: ReleaseArchitectures, or some of them.
	Architectures []string
	// Relations returns the packages that the Debian package for an architecture recommends and suggests.
	Relations func(arch string) (recommends, suggests []string)
}

// Release compiles Hullmark's own program from a checkout for each architecture, with the locked release of Go, and leaves in the
// folder Out each with an SBOM and a Debian package, man pages and shells' completions in the folders man and completions, the changelog,
// the site of the pages in the folder site, alerts and a dashboard in the folder monitoring, and SHA256SUMS over all. The same sources
// and version give the same bytes, wherever the checkout is and whether or not it is a repository. Files get their names when all of them
// are whole.
func Release(ctx context.Context, o ReleaseOptions) error {
	l, err := ReadLock(Options{LockFile: filepath.Join(o.Source, "hullmark.lock")})
	if err != nil {
		return err
	}
	if err := checkGo(ctx, l.Go, o.Source); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(o.Out, ".work-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	files, err := released{ReleaseOptions: o, lock: l, work: work}.make(ctx)
	if err != nil {
		return err
	}
	return finishRelease(work, o.Out, files)
}

// released is a release that is being made in the folder work.
type released struct {
	ReleaseOptions
	lock lock.Lock
	work string
}

// make makes all files of the release in work, and returns their names there.
func (r released) make(ctx context.Context) (files []string, err error) {
	for _, arch := range r.Architectures {
		name := r.program(arch)
		if err := r.makeProgram(ctx, arch); err != nil {
			return nil, fmt.Errorf("release %s: %w", name, err)
		}
		files = append(files, name, name+lock.SPDXEnding)
	}
	manual, err := r.makeManual(ctx)
	if err != nil {
		return nil, fmt.Errorf("release: man pages: %w", err)
	}
	for _, arch := range r.Architectures {
		name, err := r.makePackage(arch, manual)
		if err != nil {
			return nil, fmt.Errorf("release: Debian package for %s: %w", arch, err)
		}
		files = append(files, name)
	}
	site, err := r.makeSite(ctx)
	if err != nil {
		return nil, fmt.Errorf("release: site: %w", err)
	}
	copied, err := r.copyFiles()
	if err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}
	return slices.Concat(files, manual, site, copied), nil
}

// number is the version without its letter.
func (r released) number() string { return strings.TrimPrefix(r.Version, "v") }

// program is the name of an architecture's program.
func (r released) program(arch string) string { return "hullmark_" + r.number() + "_linux_" + arch }

// finishRelease writes the sums of the files in the folder work, and gives all their names in the folder out.
func finishRelease(work, out string, files []string) error {
	var sums strings.Builder
	for _, name := range files {
		sum, err := cache.HashFile(filepath.Join(work, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, name)
	}
	if err := atomicfile.Write(filepath.Join(work, sumsFile), []byte(sums.String()), 0o644); err != nil {
		return err
	}
	for _, name := range append(files, sumsFile) {
		to := filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Move(filepath.Join(work, name), to); err != nil {
			return err
		}
	}
	return nil
}

// sumsFile has the form that sha256sum --check reads.
const sumsFile = "SHA256SUMS"

// makeProgram compiles one program, and writes its SBOM beside it.
func (r released) makeProgram(ctx context.Context, arch string) error {
	to := filepath.Join(r.work, r.program(arch))
	if err := r.compile(ctx, arch, to); err != nil {
		return err
	}
	modules, err := goModules(to)
	if err != nil {
		return err
	}
	sum, err := cache.HashFile(to)
	if err != nil {
		return err
	}
	sbom, err := r.lock.ProgramSPDX(lock.Program{File: filepath.Base(to), Version: r.Version, SHA256: sum, Modules: modules})
	if err != nil {
		return err
	}
	return atomicfile.Write(to+lock.SPDXEnding, sbom, 0o644)
}

func (r released) compile(ctx context.Context, arch, to string) error {
	cmd := goCommand(ctx, r.lock.Go, r.Source, "", goFlags(linkerFlags+" -X main.releasedAs="+r.Version, "-o", to, "./tools/hullmark")...)
	cmd.Env = append(cmd.Env, "GOARCH="+arch)
	return runQuiet(cmd, "compile")
}

// makeManual has the program write man pages and completions, and returns their names in work. Where none of the architectures is this
// machine's, the program is compiled once more.
func (r released) makeManual(ctx context.Context) (names []string, err error) {
	program := filepath.Join(r.work, r.program(runtime.GOARCH))
	if !slices.Contains(r.Architectures, runtime.GOARCH) {
		if err := r.compile(ctx, runtime.GOARCH, program); err != nil {
			return nil, err
		}
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "manual", ".")
	cmd.Dir, cmd.Env = r.work, []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.lock.Time)}
	if err := runQuiet(cmd, "hullmark manual"); err != nil {
		return nil, err
	}
	return r.made("completions/*", "man/*")
}

// makeSite makes the site of the checkout's pages by a program that the locked Go compiled, since text is laid out by Go's own library, and
// returns the names of its files in work.
func (r released) makeSite(ctx context.Context) (names []string, err error) {
	work, err := filepath.Abs(r.work)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(work, "make-site")
	compile := goCommand(ctx, r.lock.Go, r.Source, "", goFlags("-o", program, "./tools/site")...)
	compile.Env = append(compile.Env, "GOARCH="+runtime.GOARCH)
	if err := runQuiet(compile, "compile"); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-out", filepath.Join(work, "site"))
	cmd.Dir = r.Source
	if err := runQuiet(cmd, "make the site"); err != nil {
		return nil, err
	}
	return r.made("site/*")
}

// changelogFile is the checkout's, and monitoringFolder has the alerts and the dashboard that docs/operations.md tells of.
const (
	changelogFile    = "CHANGELOG.md"
	monitoringFolder = "docs/examples/monitoring"
)

// copyFiles copies what is released as the checkout has it, and returns the names in work.
func (r released) copyFiles() (names []string, err error) {
	text, err := os.ReadFile(filepath.Join(r.Source, changelogFile))
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(filepath.Join(r.work, changelogFile), text, 0o644); err != nil {
		return nil, err
	}
	if err := copyFolder(filepath.Join(r.Source, monitoringFolder), filepath.Join(r.work, "monitoring"), plainMode); err != nil {
		return nil, err
	}
	return r.made(changelogFile, "monitoring/*")
}

// made returns the names of the files in work that match the patterns.
func (r released) made(patterns ...string) (names []string, err error) {
	for _, pattern := range patterns {
		found, err := fs.Glob(os.DirFS(r.work), pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	return names, nil
}
