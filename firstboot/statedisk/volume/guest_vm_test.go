//go:build vm

package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/devmapper"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/lukstest"
)

// What host and guest agree on.
const (
	guestDiskSize    = 1 << 30
	guestSerial      = "state"
	guestSmall       = "small"
	guestLarge       = "large"
	guestPassed      = "HULLMARK-GUEST-PASSED"
	guestKey         = "a key of thirty-two plain bytes!"
	guestFileContent = "this text is on the encrypted file system"
)

// The guests' tests, each for one guest.
const (
	testsOfDisks     = "^TestGuest(|Large)$"
	testsOfPowerCuts = "^TestGuestPowerCuts$"
)

// TestMain is the first process of the guest; on the host it runs the tests as usual.
func TestMain(m *testing.M) {
	if os.Getpid() != 1 {
		os.Exit(m.Run())
	}
	if err := prepareGuest(); err != nil {
		fmt.Println("prepare guest:", err)
	} else {
		// The kernel hands on what it does not know of its command line.
		os.Args = []string{"/init", "-test.v", "-test.run", os.Getenv("tests")}
		if m.Run() == 0 {
			fmt.Println(guestPassed)
		}
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func prepareGuest() error {
	for _, mount := range [][2]string{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"}} {
		if err := unix.Mount(mount[0], mount[1], mount[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", mount[1], err)
		}
	}
	modules, err := filepath.Glob("/lib/modules/*.ko")
	if err != nil {
		return err
	}
	for _, module := range modules {
		f, err := os.Open(module)
		if err != nil {
			return err
		}
		// Modules for instructions that this processor lacks do not load.
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("load %s: %w", module, err)
		}
		_ = f.Close()
	}
	return os.WriteFile("/etc/mtab", nil, 0o600) // mke2fs looks there for mounted disks
}

func onlyInGuest(t *testing.T) {
	t.Helper()
	if os.Getpid() != 1 {
		t.Skip("runs in a guest: see TestStateDiskInAGuest and TestPowerCuts, which runs it in a virtual machine")
	}
}

var workspace = Workspace{Dir: "/run/statedisk"}

func grant(committed, issued uint64) hullmark.DiskGrant {
	return hullmark.DiskGrant{
		Key: hullmark.NewSecret([]byte(guestKey)), Generation: 1, UUID: hullmark.UUID{1, 2, 3}, Owner: hullmark.EKID{7},
		Epoch: hullmark.EpochWindow{Committed: committed, Issued: issued},
	}
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var c *hullmark.Condition
	if !errors.As(err, &c) || c.Code != code {
		t.Fatalf("error %v, want condition %s", err, code)
	}
}

// TestGuest is one story of one disk, because each state follows from the one before.
func TestGuest(t *testing.T) {
	onlyInGuest(t)
	path, err := Find(hullmark.DiskSelector{Serial: guestSerial})
	if err != nil {
		t.Fatal(err)
	}
	for _, chapter := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"foreign disk is never formatted", chapterForeign},
		{"blank disk is not formatted without permission", chapterRefused},
		{"blank disk is formatted and opened", chapterFormat},
		{"disk opens again with its epoch and content", chapterReopen},
		{"older epoch is a rollback", chapterRollback},
		{"another key, uuid or owner does not open it", chapterOthers},
		{"edited header and record are refused", chapterEdited},
		{"hostile headers under the right key are refused", chapterHostile},
		{"interrupted formatting is repeated", chapterInterrupted},
	} {
		if !t.Run(chapter.name, func(t *testing.T) { chapter.run(t, path) }) {
			return
		}
	}
}

// TestGuestLarge shows that a disk is ready as soon as a smaller one, that its file system grows while it is used, and that nothing is read
// that was never written: what is, is an I/O error.
func TestGuestLarge(t *testing.T) {
	onlyInGuest(t)
	for _, serial := range []string{guestSmall, guestLarge} {
		t.Run(serial, func(t *testing.T) {
			path, err := Find(hullmark.DiskSelector{Serial: serial})
			if err != nil {
				t.Fatal(err)
			}
			large(t, path)
		})
	}
}

// grownTo is how far the file system of a large disk grows here, in bytes: all of 1 TiB takes minutes where the processor is emulated.
const grownTo = 40 << 30

func large(t *testing.T, path string) {
	g := grant(0, 1)
	g.FormatAllowed = true
	wrong := unread(t)
	before, began := written(t, path), time.Now()
	if _, err := workspace.Open(path, g); err != nil {
		t.Fatal(err)
	}
	t.Logf("formatted and opened in %.1f s, %d MiB written", time.Since(began).Seconds(), (written(t, path)-before)>>20)
	// A section of the journal is never split, so what is asked for is not exact.
	if g, err := liveGeometry(path); err != nil || g.JournalSectors > 17<<20/512 || g.JournalSectors < 15<<20/512 {
		t.Errorf("a journal of %d sectors, %v, want 16 MiB", g.JournalSectors, err)
	}
	device, err := os.OpenFile("/dev/mapper/"+Name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	size, err := device.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	want := min(size, grownTo) / blockSize
	check(t, mountedDir(func(dir string) error {
		stop, done := make(chan struct{}), make(chan error)
		go func() { done <- churn(dir, stop) }()
		began, before := time.Now(), written(t, path)
		err := growTo(t.Context(), device, dir, want)
		t.Logf("grown to %d GiB in %.1f s, %d MiB written", want*blockSize>>30, time.Since(began).Seconds(), (written(t, path)-before)>>20)
		close(stop)
		return errors.Join(err, <-done, spread(dir))
	}))
	if have, err := blocks(device); err != nil || want-have >= 128<<20/blockSize {
		t.Errorf("%d blocks, %v, want %d", have, err, want)
	}
	check(t, device.Close())
	check(t, closeVolume())
	if _, err := workspace.Open(path, grant(1, 2)); err != nil {
		t.Fatal(err)
	}
	check(t, mountedDir(checkSpread))
	if n := unread(t) - wrong; n > 0 {
		t.Errorf("%d sectors were read that were never written", n)
	}
	// e2fsck reads ahead of inode tables, into what was never written.
	if out, err := exec.Command("/usr/sbin/e2fsck", "-f", "-n", "/dev/mapper/"+Name).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
	check(t, closeVolume())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// written returns how many bytes a disk has been given to write (Linux, Documentation/block/stat.rst).
func written(t *testing.T, path string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(path), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	sectors, err := strconv.ParseInt(strings.Fields(string(text))[6], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return sectors * 512
}

// unread returns how often the kernel has said that a sector's tag is wrong.
func unread(t *testing.T) int {
	t.Helper()
	b := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b[:n], []byte("INTEGRITY AEAD ERROR"))
}

// churn makes and removes files, two at a time, until it is told to stop.
func churn(dir string, stop <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		var both sync.WaitGroup
		errs := make([]error, 2)
		for j := range errs {
			both.Go(func() {
				name := filepath.Join(dir, fmt.Sprintf("churn-%d-%d", i%50, j))
				errs[j] = errors.Join(os.RemoveAll(name), os.MkdirAll(filepath.Join(name, "below"), 0o700),
					os.WriteFile(filepath.Join(name, "below", "file"), bytes.Repeat([]byte{byte(i)}, 10_000), 0o600))
			})
		}
		both.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
}

// spread writes files into many folders, which ext4 puts into groups of blocks all over the disk.
func spread(dir string) error {
	for i := range spreadFolders {
		name := filepath.Join(dir, fmt.Sprintf("spread-%d", i))
		if err := errors.Join(os.Mkdir(name, 0o700), os.WriteFile(filepath.Join(name, "file"), spreadContent(i), 0o600)); err != nil {
			return err
		}
	}
	return nil
}

const spreadFolders = 300

func spreadContent(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 20_000) }

func checkSpread(dir string) error {
	for i := range spreadFolders {
		content, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("spread-%d", i), "file"))
		if err != nil || !bytes.Equal(content, spreadContent(i)) {
			return fmt.Errorf("spread-%d: %d bytes of another content, %w", i, len(content), err)
		}
	}
	return nil
}

func state(t *testing.T, path string) hullmark.DiskState {
	t.Helper()
	claim, err := Probe(path)
	if err != nil {
		t.Fatal(err)
	}
	return claim.State
}

// poke changes bytes of the raw disk and returns what was there.
func poke(t *testing.T, path string, offset int64, b []byte) []byte {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old := make([]byte, len(b))
	if _, err := f.ReadAt(old, offset); err != nil {
		t.Fatal(err)
	}
	if err := writeThrough(f, b, offset); err != nil {
		t.Fatal(err)
	}
	return old
}

func chapterForeign(t *testing.T, path string) {
	someone := []byte("someone's file system")
	poke(t, path, 1024, someone)
	g := grant(0, 1)
	g.FormatAllowed = true
	_, err := workspace.Open(path, g)
	wantCode(t, err, "disk-foreign")
	if old := poke(t, path, 1024, make([]byte, len(someone))); !bytes.Equal(old, someone) {
		t.Errorf("the disk was changed to %q", old)
	}
}

func chapterRefused(t *testing.T, path string) {
	_, err := workspace.Open(path, grant(0, 1))
	wantCode(t, err, "format-refused")
	if s := state(t, path); s != hullmark.DiskBlank {
		t.Errorf("the disk is %v, want blank", s)
	}
}

func chapterFormat(t *testing.T, path string) {
	g := grant(0, 1)
	g.FormatAllowed = true
	opened, err := workspace.Open(path, g)
	if err != nil {
		t.Fatal(err)
	}
	opened.Manifest = statedisk.MAC{}
	if want := (statedisk.Opened{Formatted: true}); opened != want {
		t.Errorf("opened = %+v, want %+v", opened, want)
	}
	if s := state(t, path); s != hullmark.DiskReady {
		t.Errorf("the disk is %v, want ready", s)
	}
	if err := mountedDir(func(dir string) error {
		if info, err := os.Stat(filepath.Join(dir, "var/lib/etcd")); err != nil || info.Mode().Perm() != 0o700 {
			return fmt.Errorf("var/lib/etcd: %v, %w", info, err)
		}
		if err := within(dir, recordDone); err != nil {
			return err
		}
		return replaceFile(filepath.Join(dir, "file"), guestFileContent)
	}); err != nil {
		t.Fatal(err)
	}
}

func chapterReopen(t *testing.T, path string) {
	opened, err := workspace.Open(path, grant(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	if opened.Formatted || opened.EpochRead != 1 || !opened.Joined || opened.LastBoot == "" {
		t.Errorf("opened = %+v, want epoch 1 of a disk that joined", opened)
	}
	if err := mountedDir(func(dir string) error {
		text, err := os.ReadFile(filepath.Join(dir, "file"))
		if string(text) != guestFileContent {
			return fmt.Errorf("content %q, %w", text, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(workspace.header()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the header copy is still there: %v", err)
	}
}

func chapterRollback(t *testing.T, path string) {
	for _, window := range [][2]uint64{{3, 4}, {1, 2}} {
		_, err := workspace.Open(path, grant(window[0], window[1]))
		wantCode(t, err, "rollback-detected")
		if _, err := os.Stat("/dev/mapper/" + Name); !errors.Is(err, os.ErrNotExist) {
			t.Error("the disk stayed open")
		}
	}
}

func chapterOthers(t *testing.T, path string) {
	for name, edit := range map[string]func(*hullmark.DiskGrant){
		"disk-tampered":    func(g *hullmark.DiskGrant) { g.Key = hullmark.NewSecret(bytes.Repeat([]byte{1}, 32)) },
		"disk-not-granted": func(g *hullmark.DiskGrant) { g.UUID[0]++ },
	} {
		g := grant(2, 3)
		edit(&g)
		_, err := workspace.Open(path, g)
		wantCode(t, err, name)
	}
	g := grant(2, 3)
	g.Owner[0]++
	_, err := workspace.Open(path, g)
	wantCode(t, err, "disk-not-granted")
}

func chapterEdited(t *testing.T, path string) {
	for _, offset := range []int64{500, 5000, 16<<10 + 5000, 40 << 10, statedisk.OffsetB + 75, statedisk.OffsetB + 500} {
		old := poke(t, path, offset, []byte{0xa5})
		_, err := workspace.Open(path, grant(2, 3))
		wantCode(t, err, "disk-tampered")
		poke(t, path, offset, old)
	}
	// dm-integrity's superblock says how many sectors there are; another number may open, but not as what was formatted.
	const provided = 16<<20 + 16
	old := poke(t, path, provided, []byte{0})
	poke(t, path, provided, []byte{old[0] ^ 8})
	_, err := workspace.Open(path, grant(2, 3))
	if err == nil {
		t.Error("another dm-integrity layout was opened")
	}
	poke(t, path, provided, old)
	if _, err := workspace.Open(path, grant(2, 3)); err != nil {
		t.Errorf("with everything put back: %v", err)
	}
	if err := closeVolume(); err != nil {
		t.Error(err)
	}
}

// chapterHostile has what TestMutantsUnderTheRightKey has, less often, through the whole of Open.
func chapterHostile(t *testing.T, path string) {
	keys, err := statedisk.DeriveKeys(grant(0, 1).Key)
	if err != nil {
		t.Fatal(err)
	}
	area, found, err := readReady(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(area []byte) {
		poke(t, path, 0, area[:luks2.KeyslotOffset])
		poke(t, path, statedisk.OffsetB, statedisk.EncodeB(found.Ready, area, keys.Header))
	}
	mutants, tried := 0, 0
	for m := range lukstest.Fields(area) {
		if mutants++; mutants%20 != 0 || lukstest.Equivalent(m.Header, area) == nil {
			continue
		}
		tried++
		write(m.Header)
		_, err := workspace.Open(path, grant(3, 4))
		wantCode(t, err, "disk-tampered")
		for _, name := range []string{Name, integrityName} {
			if _, err := os.Stat("/dev/mapper/" + name); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("%s, %.80s: %s was made", m.Field, m.Value, name)
			}
		}
	}
	write(area)
	if _, err := workspace.Open(path, grant(3, 4)); err != nil {
		t.Errorf("with the header put back, after %d others: %v", tried, err)
	}
	showTables(t)
	if err := closeVolume(); err != nil {
		t.Error(err)
	}
}

// showTables logs the live tables of the open disk; dm-crypt's second argument would be the key.
func showTables(t *testing.T) {
	t.Helper()
	control, err := devmapper.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	for _, name := range []string{Name, integrityName} {
		table, err := control.Table(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range table {
			fields := strings.Fields(target.Params)
			if target.Type == "crypt" {
				fields[1] = "KEY"
			}
			t.Logf("%s: %d %d %s %s", name, target.Start, target.Length, target.Type, strings.Join(fields, " "))
		}
	}
}

func chapterInterrupted(t *testing.T, path string) {
	poke(t, path, statedisk.OffsetB, make([]byte, statedisk.RecordSize))
	if s := state(t, path); s != hullmark.DiskFormatting {
		t.Fatalf("the disk is %v, want formatting", s)
	}
	g := grant(0, 1)
	g.FormatAllowed = true
	opened, err := workspace.Open(path, g)
	if err != nil || !opened.Formatted {
		t.Fatalf("opened = %+v, %v", opened, err)
	}
	if err := closeVolume(); err != nil {
		t.Error(err)
	}
}

// mountedDir calls with the folder in which the file system is mounted.
func mountedDir(do func(dir string) error) error {
	return workspace.mounted(func(root *os.Root) error { return do(root.Name()) })
}

// replaceFile replaces a file as the helper and the agent replace the manifest.
func replaceFile(path, content string) error {
	return within(filepath.Dir(path), func(root *os.Root) error {
		return atomicfile.WriteIn(root, filepath.Base(path), []byte(content), 0o600)
	})
}

// recordDone records what the agent does of a finished kubeadm.
func recordDone(root *os.Root) error {
	keys, err := statedisk.DeriveKeys(grant(0, 1).Key)
	if err != nil {
		return err
	}
	m, _, err := statedisk.ReadManifest(root, keys.Manifest)
	if err != nil {
		return err
	}
	m.Files[statedisk.IntentFile] = statedisk.KeptFile{Mode: 0o600, Content: []byte(statedisk.IntentDone)}
	_, err = statedisk.WriteManifest(root, keys.Manifest, m)
	return err
}
