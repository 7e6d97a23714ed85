//go:build vm && splices

package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestSplicesInAGuest has a guest put blocks of an older copy of its disk into the newest one.
func TestSplicesInAGuest(t *testing.T) {
	dir := t.TempDir()
	var drives []drive
	for _, serial := range []string{guestSerial, guestOld, guestNew} {
		file := filepath.Join(dir, serial)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, spliceDiskSize)); err != nil {
			t.Fatal(err)
		}
		drives = append(drives, drive{serial, file})
	}
	t.Logf("the guest said:\n%s", runGuest(t, guestTimeout, testsOfSplices, dir, drives...))
}
