package build

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// write puts the disk into OUT/ID.raw. The file has its name only when it is whole.
func (j *job) write(context.Context) (note string, err error) {
	temporary := filepath.Join(j.work, "disk.raw")
	f, err := os.Create(temporary)
	if err != nil {
		return "", err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = j.layout.WriteTo(w)
	if err := errors.Join(err, w.Flush(), f.Close()); err != nil {
		return "", err
	}
	if err := j.writeJoinService(); err != nil {
		return "", err
	}
	final := filepath.Join(j.Out, j.ID+".raw")
	hash := j.layout.RootHash()
	j.result = Result{
		Image: final, Size: j.layout.Size(), ID: j.ID, Version: j.imageVersion(), RootHash: hex.EncodeToString(hash[:]), Cmdline: j.layout.Cmdline(), LockFile: j.LockFile, Lock: j.lock, Tools: j.tools, Bundle: j.bundle, Profiles: j.Profiles, Inputs: j.inputs,
	}
	return fmt.Sprintf("%s, %d MB, UKI %.1f MB", final, j.layout.Size()/1e6, float64(len(j.layout.UKI()))/1e6), os.Rename(temporary, final)
}
