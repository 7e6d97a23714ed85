package build

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// otherDay runs programs on a kernel whose clock stands on another day: User-Mode Linux, a Linux kernel that is an ordinary
// program. Its root is the machine's, it has one processor, no network, and memory of its own for what is built. A library that
// fakes the time would not do: Go's programs do not ask the C library, and what mkosi runs asks the one in its own tree.
type otherDay struct {
	// ahead is how far its clock is before the machine's.
	ahead time.Duration
	// dir holds its memory and its init; it must be empty.
	dir string
	// memory is what it gets, in MiB. What is built lies in it, too.
	memory int
}

// umlProgram is User-Mode Linux under the name that Debian gives it.
const umlProgram = "linux.uml"

// The init of the other kernel. What is built is made on a tmpfs, and so are temporary files, because files on the machine cannot be given
// away by an ordinary user: dpkg-deb, who is root there, would unpack no control file.
const otherInit = `#!/bin/sh
mount -t proc proc /proc && mount -t sysfs sysfs /sys && { mountpoint -q /dev || mount -t devtmpfs dev /dev; } && mkdir -p /dev/pts /dev/shm &&
mount -t tmpfs -o mode=0755 tmpfs /run && mount -t tmpfs tmpfs /var/tmp && mount -t tmpfs -o size=100%% tmpfs %[1]s &&
ip link set lo up && date -s @%[2]d >/dev/null && date && export TMPDIR=/var/tmp && ( %[3]s
) && cp -RP %[4]s %[5]s/result
status=$?
sync
echo $status > %[5]s/status
sync
exec python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)'
`

// run executes script and then takes what is at path, a file or a folder below work, out to the path that it returns.
// Everything below work is gone after it. What is printed goes to show.
func (d otherDay) run(ctx context.Context, work, script, path string, show *os.File) (string, error) {
	program, err := exec.LookPath(umlProgram)
	if err != nil {
		return "", fmt.Errorf("a kernel for another day: %w (apt-get install user-mode-linux)", err)
	}
	init := fmt.Sprintf(otherInit, quote(work), time.Now().Add(d.ahead).Unix(), script, quote(path), quote(d.dir))
	if err := os.WriteFile(filepath.Join(d.dir, "init"), []byte(init), 0o755); err != nil {
		return "", err
	}
	if err := d.compile(ctx); err != nil {
		return "", fmt.Errorf("a kernel for another day: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, fmt.Sprintf("mem=%dM", d.memory), "rootfstype=hostfs", "rootflags=/", "rw",
		`init="`+filepath.Join(d.dir, "init")+`"`, "con=null", "con0=null,fd:3", "quiet", "loglevel=1")
	// The loader takes spaces and colons of a path for the end of it.
	cmd.Dir = d.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir, "TMPDIR=" + d.dir, "LD_PRELOAD=./" + umlLibrary}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &log, &log, []*os.File{show}
	interruptible(cmd)
	ended := cmd.Run()
	// The status comes after all else is on the machine's disk. How the kernel then ends says nothing: halted, it aborts now and then.
	status, err := os.ReadFile(filepath.Join(d.dir, "status"))
	if err != nil {
		return "", fmt.Errorf("a kernel for another day: %w\n%s", cmp.Or(ended, err), tail(log.Bytes(), 4096))
	}
	if strings.TrimSpace(string(status)) != "0" {
		return "", fmt.Errorf("a kernel for another day: what it ran failed (%q); if something was killed, it had too many memory maps: sysctl vm.max_map_count=1048576, and again", strings.TrimSpace(string(status)))
	}
	return filepath.Join(d.dir, "result"), nil
}

// umlLibrary is preloaded into User-Mode Linux.
const umlLibrary = "ptrace.so"

//go:embed uml/ptrace.c
var umlSource []byte

// compile makes the library that lets User-Mode Linux run on every processor.
func (d otherDay) compile(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "gcc", "-x", "c", "-O2", "-shared", "-fPIC", "-o", filepath.Join(d.dir, umlLibrary), "-")
	cmd.Stdin = bytes.NewReader(umlSource)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w (apt-get install gcc libc6-dev): %s", err, tail(said, 4096))
	}
	return nil
}

// quote makes one word of a shell's script of s.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}
