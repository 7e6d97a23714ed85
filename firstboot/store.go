package firstboot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// storeFile replaces a file on the state disk and returns once it is stored:
// what comes after relies on it even if the power goes.
func storeFile(path, content string) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := finishFile(f, []byte(content), 0o600); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// finishFile writes, sets the mode whatever the umask is, stores and closes.
func finishFile(f *os.File, content []byte, mode fs.FileMode) error {
	_, err := f.Write(content)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}
