package build

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// write puts the disk into OUT/ID.raw. The file has its name only when it is whole.
func (j *job) write(context.Context) (note string, err error) {
	temporary := filepath.Join(j.work, "disk.raw")
	if err := atomicfile.Stream(temporary, atomicfile.Options{Mode: 0o644}, j.writeDisk); err != nil {
		return "", err
	}
	if err := j.writeJoinService(); err != nil {
		return "", err
	}
	final := filepath.Join(j.Out, j.ID+lock.DiskEnding)
	hash := j.layout.RootHash()
	j.result = Result{
		Image: final, Size: j.layout.Size(), ID: j.ID, Version: j.imageVersion(), RootHash: hex.EncodeToString(hash[:]), Cmdline: j.layout.Cmdline(), LockFile: j.LockFile, Lock: j.lock, Tools: j.tools, Bundle: j.bundle, Profiles: j.Profiles, Inputs: j.inputs,
	}
	return fmt.Sprintf("%s, %d MB, UKI %.1f MB", final, j.layout.Size()/1e6, float64(len(j.layout.UKI()))/1e6), atomicfile.Move(temporary, final)
}

func (j *job) writeDisk(f *os.File) error { return j.layout.WriteInto(f) }
