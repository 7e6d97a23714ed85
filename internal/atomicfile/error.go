package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

var errKind = errors.New("what has this name is no regular file, and stays as it is; name another one")

// explain makes one error of what, where, why, and what to do next.
func (p place) explain(err error) error {
	if err == nil {
		return nil
	}
	var said *explained
	if errors.As(err, &said) { // of a file in a folder that is being filled
		return err
	}
	return &explained{fmt.Errorf("write %s: %w%s", p.path, cause(err), p.next(err))}
}

// explained is an error that says what to do next.
type explained struct{ error }

func (e *explained) Unwrap() error { return e.error }

// explainFill is explain for errors of who fills a file: those that are not about the file stay as they are.
func (p place) explainFill(err error) error {
	if p.next(err) == "" || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	return p.explain(err)
}

// cause leaves out what an error says of the temporary, which is gone.
func cause(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path) && err == error(path):
		return path.Err
	case errors.As(err, &link) && err == error(link):
		return link.Err
	}
	return err
}

// next says what to do about an error, as the end of a sentence.
func (p place) next(err error) string {
	for _, n := range []struct {
		err  error
		text string
	}{
		{syscall.ENOSPC, "make room on that disk and do it again; what was there before is whole"},
		{syscall.EDQUOT, "make room within the quota and do it again; what was there before is whole"},
		{syscall.EFBIG, "raise the limit on a file's size (ulimit -f) or take another disk, and do it again; what was there before is whole"},
		{syscall.EIO, "the disk fails: read the kernel's log, and write to another disk"},
		{syscall.EROFS, "that file system is read-only: mount it for writing or name another place"},
		{fs.ErrNotExist, "make the folder " + filepath.Dir(p.path) + " first"},
		{fs.ErrExist, "name another file; this one stays as it is"},
		{fs.ErrPermission, "get the permission to write in " + filepath.Dir(p.path) + ", or name another place"},
	} {
		if errors.Is(err, n.err) {
			return " (" + n.text + ")"
		}
	}
	return ""
}
