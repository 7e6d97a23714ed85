package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// toolPackages are what the tools tree is asked to hold; what they depend on comes with them.
func toolPackages() []string {
	return []string{
		// What mkosi runs to install packages into a tree.
		"?essential", "apt", "sqv", "gpgv", "debian-archive-keyring", "ca-certificates", "tar", "xz-utils", "cpio", "kmod", "systemd", "udev", "util-linux", "mount", "fdisk",
		// What tells which files of the tree the scripts of packages read.
		"strace",
		// The boot stub that becomes part of the image, and what its root is compared with.
		"systemd-boot-efi", "erofs-utils",
		// What compiles the program that links libcryptsetup.
		"gcc", "libc6-dev", "libcryptsetup-dev", "pkgconf",
		// What boots an image, and what tests hold an image and its signed document against.
		"qemu-system-x86", "ovmf", "swtpm", "swtpm-tools", "tpm2-tools", "cryptsetup-bin", "mtools", "dosfstools", "gdisk", "cosign",
	}
}

// mkosiPackage runs on the machine's Python and takes its tools from the tree, so it is locked without what it depends on.
const mkosiPackage = "mkosi"

// toolsFormat changes whenever unpackTools makes another tree of the same packages.
const toolsFormat = "5"

// Tools returns the unpacked tools tree of a lock; its packages are fetched if need be.
func Tools(ctx context.Context, o Options, l lock.Lock) (string, error) {
	dir, _, err := o.Store.Step("tools", cache.Key(toolsFormat, l.Digest(lock.Tools)), func(dir string) error {
		packages := l.Of(lock.Tools)
		if err := fetch(ctx, o, l, packages); err != nil {
			return err
		}
		if err := unpackTools(ctx, o.Store, packages, dir); err != nil {
			return err
		}
		return traceDpkg(dir)
	})
	return dir, err
}

// traceDpkg has a tools tree's dpkg write down what it and scripts read.
func traceDpkg(dir string) error {
	dpkg := filepath.Join(dir, "usr/bin/dpkg")
	if err := os.Rename(dpkg, dpkg+".debian"); err != nil {
		return err
	}
	return os.WriteFile(dpkg, []byte(tracedDpkg), 0o755)
}

// unpackTools lays the files of packages over each other. No maintainer script is run, so the tree is a function of the
// packages alone; the one thing that a script would have made and that a tool needs is made here.
func unpackTools(ctx context.Context, s cache.Store, packages []lock.Package, dir string) error {
	for _, p := range packages {
		if err := unpack(ctx, s.BlobPath(p.SHA256), dir); err != nil {
			return fmt.Errorf("unpack %s: %w", p.ID(), err)
		}
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	return errors.Join(
		dropBorrowedRights(dir),
		tree.Symlink("mawk", "usr/bin/awk"),
		tree.WriteFile("etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644),
		tree.WriteFile("etc/group", []byte("root:x:0:\n"), 0o644),
		tree.Close(),
	)
}

// dropBorrowedRights takes set-user-ID and set-group-ID bits away: if root unpacked the tree, any user could else run its programs as root.
func dropBorrowedRights(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) == 0 {
			return err
		}
		return os.Chmod(path, info.Mode().Perm())
	})
}

// unpack lays a package's files over those in dir. Links of other packages are followed, as /bin is one, but tar sees no other
// folder that it could write to.
func unpack(ctx context.Context, deb, dir string) error {
	content := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	s := toolstree.Sandbox{Tree: "/", Offline: true, Binds: []toolstree.Bind{{Host: dir, Tree: "/out", Writable: true}}}
	tar := s.Command(ctx, "tar", "-x", "-C", "/out", "--no-same-owner", "--keep-directory-symlink", "--delay-directory-restore")
	pipe, err := content.StdoutPipe()
	if err != nil {
		return err
	}
	tar.Stdin = pipe
	if err := content.Start(); err != nil {
		return err
	}
	out, err := tar.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("tar: %w: %s", err, out)
	}
	return errors.Join(err, content.Wait())
}
