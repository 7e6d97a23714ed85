//go:build vm

package volume

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/joinservice"
)

// known is what is known outside of a disk, and outlives every cut: the join service's record, and what the node has said or
// could have acted upon. Each is noted at the moment from which on it must be true of the disk.
type known struct {
	// Record is of the last ticket.
	Record *joinservice.Record
	// Kept says that there was a ticket that did not allow formatting, or that the disk was reported open: its data must never
	// be given up from there on.
	Kept bool
	// Boots counts boots, so that each writes files of its own.
	Boots int
	// Counter, Log and Done are what was stored last: a file that is replaced, a file that grows by a line, and the boot whose
	// files are all stored.
	Counter, Log, Done int
}

// message is what guest and host tell each other.
type message struct {
	// Mark says where in the disk's log the guest is, and Known what is true there.
	Mark  string
	Known known
	// Next asks the host for another disk, which was cut. Its answer has End when there is none. Result says how the boot from
	// the last one went.
	Next, End bool
	Result    *result
}

// result is how the boot from a cut disk went.
type result struct {
	Found, Did string
	Failed     string `json:",omitempty"`
}

// control is a disk by which the guest speaks to the host: writing to it returns once the host has understood.
type control struct {
	file  *os.File
	block []byte
}

// messageSize is the size of a message on the control disk, with its padding, in bytes.
const messageSize = 4096

func openControl(t *testing.T) control {
	t.Helper()
	path, err := Find(hullmark.DiskSelector{Serial: guestControl})
	if err != nil {
		t.Fatal(err)
	}
	// Past the page cache, which wants whole pages.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	block, err := unix.Mmap(-1, 0, messageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	return control{f, block}
}

func (c control) tell(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	clear(c.block)
	copy(c.block, text)
	_, err = c.file.WriteAt(c.block, 0)
	return err
}

// next takes the next cut disk from the host.
func (c control) next() (message, error) {
	if err := c.tell(message{Next: true}); err != nil {
		return message{}, err
	}
	if _, err := c.file.ReadAt(c.block, 0); err != nil {
		return message{}, err
	}
	var m message
	return m, json.Unmarshal(bytes.TrimRight(c.block, "\x00"), &m)
}

// node is a node with its disk, and what is known of it.
type node struct {
	known

	path    string
	control control
	result  result
}

func (n *node) mark(step string) error { return n.control.tell(message{Mark: step, Known: n.known}) }

// TestGuestPowerCuts is the life of a disk, whose writes the host records; and then boots from that disk as cuts within that life left it.
func TestGuestPowerCuts(t *testing.T) {
	onlyInGuest(t)
	path, err := Find(hullmark.DiskSelector{Serial: guestSerial})
	if err != nil {
		t.Fatal(err)
	}
	c := openControl(t)
	n := node{path: path, control: c}
	for range 2 {
		if err := n.boot(t); err != nil {
			t.Fatal(err)
		}
	}
	for {
		m, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.End {
			return
		}
		n := node{known: m.Known, path: path, control: c}
		if err := n.boot(t); err != nil {
			t.Error(err)
			n.result.Failed = err.Error()
			check(t, closeAll())
		}
		if err := c.tell(message{Result: &n.result}); err != nil {
			t.Fatal(err)
		}
	}
}

// closeAll leaves nothing of a boot that failed.
func closeAll() error {
	if err := unix.Unmount(workspace.mount(), 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return closeVolume()
}

// boot is what a node does with its disk from power-on to Ready, with the join service's part of it.
func (n *node) boot(t *testing.T) error {
	n.Boots++
	if err := n.open(); err != nil {
		return err
	}
	// As the agent does, nothing is mounted now.
	if out, err := exec.Command("/usr/sbin/e2fsck", "-f", "-n", "/dev/mapper/"+Name).CombinedOutput(); err != nil {
		return fmt.Errorf("e2fsck: %w\n%s", err, out)
	}
	// The options of hullmark-state.service.
	if err := unix.Mount("/dev/mapper/"+Name, workspace.mount(), "ext4", 0, mountOptions+",nodelalloc"); err != nil {
		return err
	}
	grow := func(dir string) error { return errors.Join(Grow(t.Context(), dir), n.mark("grown")) }
	for _, do := range []func(dir string) error{n.check, n.store, n.join, grow} {
		if err := do(workspace.mount()); err != nil {
			return err
		}
	}
	return closeAll()
}

// open is the part of a boot from DISK to FUSE.
func (n *node) open() error {
	claim, err := Probe(n.path)
	if err != nil {
		return err
	}
	n.result.Found = claim.State.String()
	if claim.State == hullmark.DiskBlank {
		_, _ = rand.Read(claim.UUID[:]) // never fails
	}
	if err := n.mark("claimed"); err != nil {
		return err
	}
	record, allowed, err := n.Record.Issue(claim, joinservice.Waiver{})
	if err != nil {
		return err
	}
	if allowed && n.Kept {
		return fmt.Errorf("the disk is %s, but its data must be there", claim.State)
	}
	step := "opening"
	if allowed {
		step = "formatting"
	}
	n.Record, n.Kept = &record, !allowed
	if err := n.mark(step); err != nil {
		return err
	}
	key := sha256.Sum256(append([]byte("the key of disk "), claim.UUID[:]...))
	g := hullmark.DiskGrant{
		Key: hullmark.NewSecret(key[:]), Generation: 1, UUID: claim.UUID, Owner: hullmark.EKID{7}, FormatAllowed: allowed,
		Epoch: hullmark.EpochWindow{Committed: record.Committed, Issued: record.Issued},
	}
	opened, err := workspace.Open(n.path, g)
	if err != nil {
		return err
	}
	n.result.Did = fmt.Sprintf("opened, epoch %d to %d", opened.EpochRead, record.Issued)
	if opened.Formatted {
		n.result.Did = "formatted"
	}
	n.Kept = true
	if err := n.mark("opened"); err != nil {
		return err
	}
	if record, err = record.Commit(claim.UUID, record.Issued); err != nil {
		return err
	}
	n.Record = &record
	return n.mark("committed")
}

// What boots write, relative to the root of the file system.
const (
	counterFile = statedisk.AgentDir + "/counter"
	logFile     = "var/lib/etcd/log"
	doneFile    = statedisk.AgentDir + "/done"
)

// store replaces a file again and again, as the agent does, and lets another one grow, as etcd does. What follows a mark relies
// on what was stored.
func (n *node) store(dir string) error {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	for range 5 {
		if err := replaceFile(filepath.Join(dir, counterFile), strconv.Itoa(n.Counter+1)); err != nil {
			return err
		}
		n.Counter++
		if err := n.mark("replaced a file"); err != nil {
			return err
		}
		if _, err := log.WriteAt(line(n.Log), int64(n.Log*len(line(0)))); err != nil {
			return err
		}
		if err := log.Sync(); err != nil {
			return err
		}
		n.Log++
		if err := n.mark("appended to a file"); err != nil {
			return err
		}
	}
	return nil
}

// line is one of the growing file. It has more than one sector.
func line(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "line %10d\n", i), 100)
}

// join writes many files and stores none, as kubeadm does; then all are stored at once, and that they are is recorded, as the agent does.
func (n *node) join(dir string) error {
	folder := filepath.Join(dir, joinFolder(n.Boots))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for i := range joinFiles {
		if err := os.WriteFile(filepath.Join(folder, strconv.Itoa(i)), joinContent(n.Boots, i), 0o600); err != nil {
			return err
		}
	}
	if err := n.mark("wrote files"); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Syncfs(int(f.Fd())), f.Close()); err != nil {
		return err
	}
	if err := n.mark("synced"); err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, doneFile), strconv.Itoa(n.Boots)); err != nil {
		return err
	}
	n.Done = n.Boots
	return n.mark("recorded")
}

const joinFiles = 40

func joinFolder(boot int) string { return filepath.Join("etc-kubernetes", strconv.Itoa(boot)) }

func joinContent(boot, i int) []byte { return bytes.Repeat([]byte{byte(boot), byte(i), 1}, 1000+500*i) }

// check holds what the disk has against what was stored before the cut. What was being stored may be there or not, but as a whole.
func (n *node) check(dir string) error {
	counter, err := number(filepath.Join(dir, counterFile))
	if err != nil {
		return err
	}
	if counter < n.Counter || counter > n.Counter+1 {
		return fmt.Errorf("a replaced file says %d, stored was %d", counter, n.Counter)
	}
	log, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil && (n.Log > 0 || !errors.Is(err, os.ErrNotExist)) {
		return err
	}
	for i := range n.Log {
		if end := (i + 1) * len(line(i)); len(log) < end || !bytes.Equal(log[end-len(line(i)):end], line(i)) {
			return fmt.Errorf("line %d of %d, each of them stored, is lost or torn", i, n.Log)
		}
	}
	done, err := number(filepath.Join(dir, doneFile))
	if err != nil {
		return err
	}
	if done < n.Done {
		return fmt.Errorf("it is recorded that the files of boot %d are stored, those of boot %d were", done, n.Done)
	}
	n.Counter, n.Done = counter, done
	return checkJoin(dir, done)
}

// checkJoin looks for all that a boot wrote, if one is recorded.
func checkJoin(dir string, done int) error {
	if done == 0 {
		return nil
	}
	for i := range joinFiles {
		content, err := os.ReadFile(filepath.Join(dir, joinFolder(done), strconv.Itoa(i)))
		if err != nil {
			return err
		}
		if !bytes.Equal(content, joinContent(done, i)) {
			return fmt.Errorf("file %d of boot %d, which is recorded as stored, has %d bytes of another content", i, done, len(content))
		}
	}
	return nil
}

// number reads a file that holds one; 0 if there is none.
func number(name string) (int, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}
