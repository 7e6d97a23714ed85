package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// Release compiles Hullmark's own program from the checkout in source for each architecture, with the locked release of Go, and
// leaves it in the folder out, with an SBOM for each and SHA256SUMS over all. The same sources and version give the same bytes,
// wherever the checkout is and whether or not it is a repository. Version is what the program calls itself ("v1.2.3"). Files
// get their names when all of them are whole.
func Release(ctx context.Context, source, version, out string, architectures []string) error {
	l, err := ReadLock(Options{LockFile: filepath.Join(source, "hullmark.lock")})
	if err != nil {
		return err
	}
	if err := checkGo(ctx, l.Go, source); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(out, ".work-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	var files []string
	for _, arch := range architectures {
		name := "hullmark_" + strings.TrimPrefix(version, "v") + "_linux_" + arch
		if err := releaseProgram(ctx, l, source, version, arch, filepath.Join(work, name)); err != nil {
			return fmt.Errorf("release %s: %w", name, err)
		}
		files = append(files, name, name+lock.SPDXEnding)
	}
	return finishRelease(work, out, files)
}

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
		if err := atomicfile.Move(filepath.Join(work, name), filepath.Join(out, name)); err != nil {
			return err
		}
	}
	return nil
}

// sumsFile has the form that sha256sum --check reads.
const sumsFile = "SHA256SUMS"

// releaseProgram compiles one program, and writes its SBOM beside it.
func releaseProgram(ctx context.Context, l lock.Lock, source, version, arch, to string) error {
	cmd := goCommand(ctx, l.Go, source, "", goFlags(linkerFlags+" -X main.releasedAs="+version, "-o", to, "./tools/hullmark")...)
	cmd.Env = append(cmd.Env, "GOARCH="+arch)
	if err := runQuiet(cmd, "compile"); err != nil {
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
	sbom, err := l.ProgramSPDX(lock.Program{File: filepath.Base(to), Version: version, SHA256: sum, Modules: modules})
	if err != nil {
		return err
	}
	return atomicfile.Write(to+lock.SPDXEnding, sbom, 0o644)
}
