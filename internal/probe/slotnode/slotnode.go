// Package slotnode is a node that holds the slots' helper and nothing else, for tests that cut its power: it says what it booted, and
// asks the helper for what its host orders.
package slotnode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/image/verity"
	"github.com/hullmark/hullmark/internal/probe/guest"
)

// Where the root file system has its parts.
const (
	// Release is the file that says which release this is.
	Release = "release"
	// Helper is tools/slots, and Module is the kernel's for firmware variables.
	Helper, Module = "usr/lib/hullmark/slots", "efivarfs.ko"
	// Init is this program, where the initrd looks for it.
	Init = "usr/lib/systemd/systemd"
)

// The host's disk, by which it speaks to this node.
const (
	// Serial is its serial number.
	Serial = "hullmark-state"
	// Published is where the raw disks of releases begin, in bytes. Before it are Orders, as JSON that zeros follow. Whatever is
	// written there tells the host that the next of them is begun.
	Published = 1 << 20
)

// Orders are what the host wants of one boot.
type Orders struct {
	// Requests are sent to the helper in their order.
	Requests []update.Request
	// Disks are what can be fetched from Source.
	Disks []Disk
}

// Disk is the raw disk of a release.
type Disk struct {
	// Digest is its SHA-256.
	Digest hullmark.RootHash
	// Offset is where the host's disk has it, and Size how long it is, in bytes.
	Offset, Size int64
}

// Run says what was booted, and then does what is ordered.
func Run() error {
	for _, m := range [][2]string{{"securityfs", "/sys/kernel/security"}, {"tmpfs", "/run"}} {
		if err := guest.Mount(m[0], m[1]); err != nil {
			return err
		}
	}
	if err := errors.Join(disarmWatchdog(), mountVariables()); err != nil {
		return err
	}
	if err := errors.Join(guest.Report(), readRoot()); err != nil {
		return err
	}
	if err := serveHelper(); err != nil {
		return err
	}
	client := update.Client{Path: update.Socket}
	slots, err := client.Look(context.Background())
	if err != nil {
		return err
	}
	text, err := json.Marshal(slots)
	if err != nil {
		return err
	}
	fmt.Printf("probe: slots %s\n", text)
	return follow(client)
}

// disarmWatchdog keeps the watchdog that the initrd has armed from ending a boot that stages for long: nobody takes it over here
// (Linux, Documentation/watchdog/watchdog-api.rst).
func disarmWatchdog() error {
	f, err := os.OpenFile("/dev/watchdog0", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // The initrd found none either.
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("V")
	return errors.Join(err, f.Close())
}

func mountVariables() error {
	f, err := os.Open("/" + Module)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", Module, err)
	}
	return guest.Mount("efivarfs", string(update.FirmwareVariables))
}

// readRoot reads every block of the root through dm-verity, which stops the machine at one that is another, and says which release it is.
func readRoot() error {
	root, err := os.Open("/dev/dm-0")
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := io.Copy(io.Discard, root); err != nil {
		return fmt.Errorf("read the root: %w", err)
	}
	release, err := os.ReadFile("/" + Release)
	if err != nil {
		return err
	}
	fmt.Printf("probe: root %s\n", release)
	return nil
}

// follow does what the host orders.
func follow(client update.Client) error {
	host, err := openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	head := make([]byte, Published)
	if _, err := host.ReadAt(head, 0); err != nil {
		return err
	}
	var orders Orders
	if err := json.Unmarshal(bytes.TrimRight(head, "\x00"), &orders); err != nil {
		return err
	}
	if err := publish(host, orders.Disks); err != nil {
		return err
	}
	for _, r := range orders.Requests {
		if _, err := host.WriteAt(head[:4096], 0); err != nil {
			return err
		}
		if err := errors.Join(host.Sync(), obey(client, r)); err != nil {
			return fmt.Errorf("%s: %w", r.Op, err)
		}
	}
	return nil
}

// openHost opens the host's disk.
func openHost() (*os.File, error) {
	serials, err := filepath.Glob("/sys/block/*/serial")
	if err != nil {
		return nil, err
	}
	for _, s := range serials {
		if text, err := os.ReadFile(s); err == nil && strings.TrimSpace(string(text)) == Serial {
			return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(s))), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("no disk has serial %s", Serial)
}

func obey(client update.Client, r update.Request) error {
	ctx := context.Background()
	switch r.Op {
	case update.OpStage:
		release := update.Release{RootHash: verity.Root(r.RootHash), Disk: r.Disk}
		return client.Stage(ctx, release, []string{Source}, func(update.Fetched) {})
	case update.OpTry:
		return client.Try(ctx)
	case update.OpCommit:
		return client.Commit(ctx)
	case update.OpExplain:
		return client.Explain(ctx, r.Text)
	default:
		return errors.New("this node does not know it")
	}
}
