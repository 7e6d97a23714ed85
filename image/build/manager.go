package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/oci"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/cache"
)

const (
	// managerModule is the folder of the module of the providers for Cluster API.
	managerModule = "tools/capi"
	// authorities is where Go looks for the system's certificate authorities.
	authorities = "etc/ssl/certs/ca-certificates.crt"
	// authoritiesPackage has them, as files below authoritiesFolder.
	authoritiesPackage = "ca-certificates"
	authoritiesFolder  = "usr/share/ca-certificates/mozilla/"
	// maxAuthorities bounds a certificate of that package, in bytes.
	maxAuthorities = 64 << 10
)

// Managers compiles the manager of the providers for Cluster API, and returns a container image of it for each architecture: the program,
// and the certificate authorities of the locked package set, by which it knows keepers. The same sources and lock give the same images.
// The programs stay in the folder work, each with its SBOM.
func Managers(ctx context.Context, o Options, work string, architectures []string) ([]oci.Image, error) {
	l, err := ReadLock(o)
	if err != nil {
		return nil, err
	}
	if err := checkGo(ctx, l.Go, o.Source); err != nil {
		return nil, err
	}
	trusted, err := certificateAuthorities(ctx, o, l)
	if err != nil {
		return nil, fmt.Errorf("certificate authorities: %w", err)
	}
	var images []oci.Image
	for _, arch := range architectures {
		program := filepath.Join(work, "manager_linux_"+arch)
		if err := compileManager(ctx, l, o.Source, arch, program); err != nil {
			return nil, fmt.Errorf("manager for %s: %w", arch, err)
		}
		text, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		images = append(images, managerImage(arch, text, trusted))
	}
	return images, nil
}

func managerImage(arch string, program, trusted []byte) oci.Image {
	files := []oci.File{{Name: "manager", Mode: 0o755, Content: program}, {Name: authorities, Mode: 0o644, Content: trusted}}
	for dir := filepath.Dir(authorities); dir != "."; dir = filepath.Dir(dir) {
		files = append(files, oci.File{Name: dir, Mode: fs.ModeDir | 0o755})
	}
	return oci.Image{Architecture: arch, Files: files, Path: "/", Entrypoint: []string{"/manager"}, User: joinServiceUser}
}

// compileManager compiles the manager, and writes its SBOM beside it.
func compileManager(ctx context.Context, l lock.Lock, source, arch, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	cmd := goCommand(ctx, l.Go, filepath.Join(source, managerModule), "", goFlags("-o", to, ".")...)
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
	sbom, err := l.ProgramSPDX(lock.Program{File: filepath.Base(to), SHA256: sum, Modules: modules})
	if err != nil {
		return err
	}
	return atomicfile.Write(to+lock.SPDXEnding, sbom, 0o644)
}

// certificateAuthorities returns the authorities of the locked package, as its installation makes one file of them.
func certificateAuthorities(ctx context.Context, o Options, l lock.Lock) ([]byte, error) {
	packages := l.Of(lock.Root)
	at := slices.IndexFunc(packages, func(p lock.Package) bool { return p.Name == authoritiesPackage })
	if at < 0 {
		return nil, fmt.Errorf("the lock has no package %s", authoritiesPackage)
	}
	if err := fetch(ctx, o, l, packages[at:at+1]); err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", o.Store.BlobPath(packages[at].SHA256))
	cmd.Stderr = &stderr
	contents, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, &stderr)
	}
	return readAuthorities(bytes.NewReader(contents))
}

// readAuthorities joins the certificates of a package's contents, in the order of their names.
func readAuthorities(contents io.Reader) ([]byte, error) {
	found := map[string][]byte{}
	for r := tar.NewReader(contents); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name, inside := strings.CutPrefix(strings.TrimPrefix(h.Name, "./"), authoritiesFolder)
		if !inside || h.Typeflag != tar.TypeReg || !strings.HasSuffix(name, ".crt") {
			continue
		}
		if h.Size > maxAuthorities {
			return nil, fmt.Errorf("%s has %d bytes, want at most %d", h.Name, h.Size, maxAuthorities)
		}
		if found[name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no certificates in %s", authoritiesFolder)
	}
	var all bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all.Write(found[name])
	}
	return all.Bytes(), nil
}
