//go:build long || vm

package infrastructure

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/vm"
)

// world is a host whose processes are played: what a real one leaves in a folder is there, and what runs is remembered. It outlives
// the controllers of a test, as processes do.
type world struct {
	t *testing.T

	mu       sync.Mutex
	running  map[string]func() // folder to what ends it
	starts   map[string]int
	asked    map[string]bool
	args     map[string][]string
	stubborn bool                      // guests do not switch themselves off
	refuse   func(folder string) error // why a start fails
	dies     bool                      // a machine ends before its guest says anything
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, running: map[string]func(){}, starts: map[string]int{}, asked: map[string]bool{}, args: map[string][]string{}}
	t.Cleanup(func() {
		for folder := range w.running {
			w.over(folder)
		}
	})
	return w
}

// Start implements Processes.
func (w *world) Start(_ context.Context, folder, log string, args ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[folder] != nil {
		return errors.New("another machine runs on it")
	}
	w.starts[folder]++
	w.args[folder] = args
	if w.refuse != nil {
		if err := w.refuse(folder); err != nil {
			return err
		}
	}
	run, err := os.MkdirTemp("", runPrefix)
	if err != nil {
		return err
	}
	link := filepath.Join(folder, runName)
	if err := errors.Join(os.MkdirAll(folder, 0o700), os.RemoveAll(link), os.Symlink(run, link), os.WriteFile(log, nil, 0o600)); err != nil {
		return err
	}
	end := func() {}
	if args[1] == "network" {
		end, err = serve(args)
	} else {
		err = w.bootMachine(folder, log)
	}
	if err != nil {
		return err
	}
	if w.dies && args[1] != "network" {
		return errors.Join(os.RemoveAll(run), os.Remove(link))
	}
	delete(w.asked, folder)
	w.running[folder] = func() {
		end()
		os.RemoveAll(run)
		os.Remove(link)
	}
	return nil
}

// serve listens on the network's first forward.
func serve(args []string) (func(), error) {
	f, err := vm.ParseForward(args[slices.Index(args, "--forward")+1])
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp4", onHost(f.Host))
	if err != nil {
		return nil, err
	}
	return func() { l.Close() }, nil
}

// bootMachine leaves what a machine's start does, up to the first line of its console.
func (w *world) bootMachine(folder, log string) error {
	if w.dies {
		return os.WriteFile(log, []byte("ek 1\nhullmark: no room for the disk\n"), 0o600)
	}
	files := map[string][]byte{"console.log": []byte("BdsDxe: loading Boot0001\n"), vm.EKPublicFile: []byte("key of " + folder)}
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	files[vm.EKCertFile], files[vm.CAFile] = certificate, certificate
	for name, content := range files {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			continue // a machine keeps what it is
		}
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ekID is the identity of the machine that plays on a folder.
func ekID(folder string) string { return hullmark.EKIDOf([]byte("key of " + folder)).String() }

func selfSigned() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// Look implements Processes.
func (w *world) Look(folder string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[folder] != nil, nil
}

// Stop implements Processes: the first time it asks, the second time the process has obeyed, or its grace is over.
func (w *world) Stop(folder string, _ time.Duration) (bool, error) {
	if running, _ := w.Look(folder); !running {
		return true, nil
	}
	w.mu.Lock()
	first := !w.asked[folder]
	w.asked[folder] = true
	w.mu.Unlock()
	if first || w.stubborn {
		return false, nil
	}
	w.over(folder)
	return true, nil
}

// over ends what runs on a folder, cleanly.
func (w *world) over(folder string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end := w.running[folder]; end != nil {
		end()
		delete(w.running, folder)
	}
}

// killed ends what runs on a folder as a kill does: its sockets stay.
func (w *world) killed(folder string) {
	w.over(folder)
	run, err := os.MkdirTemp("", runPrefix)
	if err == nil {
		err = os.Symlink(run, filepath.Join(folder, runName))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// said is what a machine says in its log as it ends.
func (w *world) said(s slot, text string) {
	if err := os.WriteFile(s.log(), []byte("console    x\n\n"+text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// count returns how often anything was started, and how much runs.
func (w *world) count() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, starts := range w.starts {
		n += starts
	}
	return fmt.Sprintf("%d starts, %d run", n, len(w.running))
}
