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
		Image: final, Size: j.layout.Size(), ID: j.ID, Version: j.imageVersion(), RootHash: hex.EncodeToString(hash[:]), Cmdline: j.layout.Cmdline(), LockFile: j.LockFile, Lock: j.lock, Tools: j.tools, Bundle: j.bundle,
	}
	return fmt.Sprintf("%s, %d MB, UKI %.1f MB", final, j.layout.Size()/1e6, float64(len(j.layout.UKI()))/1e6), os.Rename(temporary, final)
}

// kernelCommandLine is what every image boots with; package image adds the root hash.
const kernelCommandLine = "console=ttyS0 quiet loglevel=4 panic=1 lockdown=integrity module.sig_enforce=1 " +
	// Debian's list without BPF and AppArmor, which nothing here uses and which cost seconds where the processor is emulated.
	"lsm=lockdown,landlock,yama " +
	// Nothing that the machine offers becomes a credential: such strings are in no register (systemd.system-credentials(7)).
	"systemd.import_credentials=no " +
	// No prompt and no second try: a node that cannot start restarts.
	"systemd.crash_action=reboot systemd.crash_shell=no systemd.show_status=error"
