package bench

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf16"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// BenchmarkRegisters computes all SHA-256 registers of the built image, from its file on, and compares with one
// SHA-256 pass over the bytes of all events. What the firmware files tell is read before.
func BenchmarkRegisters(b *testing.B) {
	machine := openMachine(b)
	raw, err := os.Open(filepath.Join(*out, "hullmark.raw"))
	if err != nil {
		b.Fatalf("the image is missing: run make image: %v", err)
	}
	defer func() { _ = raw.Close() }()
	boot := openBoot(b, raw, machine)
	pieces := measuredBytes(b, boot)
	size := 0
	for _, piece := range pieces {
		size += len(piece)
	}
	what := comparison{
		what: "all SHA-256 registers of an image", peer: fmt.Sprintf("one SHA-256 pass over the %d MiB of its events", size>>20),
		target: 1.3, atMost: true,
	}
	ours := func(int) { registers(b, openBoot(b, raw, machine)) }
	compare(b, what, 9, ours, func(int) { onePass(pieces) })
}

func openMachine(b *testing.B) (m pcrs.Machine) {
	b.Helper()
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join(*out, "tools/usr/share/OVMF", name))
		if err != nil {
			b.Fatalf("the firmware of the tools tree is missing: run make image: %v", err)
		}
		return content
	}
	var err error
	if m.Firmware, err = pcrs.OpenFirmware(read("OVMF_CODE_4M.fd")); err != nil {
		b.Fatal(err)
	}
	if m.Vars, err = firmware.OpenVars(read("OVMF_VARS_4M.fd")); err != nil {
		b.Fatal(err)
	}
	return m
}

func openDisk(b *testing.B, raw *os.File) *image.Disk {
	b.Helper()
	info, err := raw.Stat()
	if err != nil {
		b.Fatal(err)
	}
	disk, err := image.Open(raw, info.Size())
	if err != nil {
		b.Fatal(err)
	}
	return disk
}

func openBoot(b *testing.B, raw *os.File, machine pcrs.Machine) pcrs.Boot {
	disk := openDisk(b, raw)
	return pcrs.Boot{Machine: machine, UKI: disk.UKI, Table: disk.Table, Banks: []pcrs.Bank{pcrs.SHA256}}
}

func registers(b *testing.B, boot pcrs.Boot) pcrs.Prediction {
	p, err := pcrs.Predict(boot)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := p.Values(pcrs.SHA256); err != nil {
		b.Fatal(err)
	}
	return p
}

func onePass(pieces [][]byte) {
	h := sha256.New()
	for _, piece := range pieces {
		h.Write(piece)
	}
	h.Sum(nil)
}

// measuredBytes collects the bytes that the events are the hashes of, independently of the prediction, and checks
// that it predicts an event for each. The archives that the stub adds to the initrd are left out: some hundred bytes.
func measuredBytes(b *testing.B, boot pcrs.Boot) [][]byte {
	b.Helper()
	linux, _ := boot.UKI.Section(".linux")
	kernel, err := pe.Parse(bytes.NewReader(linux), int64(len(linux)))
	if err != nil {
		b.Fatal(err)
	}
	pieces := [][]byte{authenticode(b, boot.UKI.PE), authenticode(b, kernel)}
	for _, s := range boot.UKI.Measured() {
		pieces = append(pieces, append([]byte(s.Name), 0), s.Data)
	}
	cmdline, _ := boot.UKI.Section(".cmdline")
	pieces = append(pieces, wide(string(cmdline)))
	predicted := map[string]bool{}
	for _, e := range registers(b, boot).Log.Events {
		predicted[e.Digests[pcrs.SHA256].String()] = true
		if len(e.Data) > 0 {
			pieces = append(pieces, e.Data)
		}
	}
	for i, piece := range pieces {
		if digest := sha256.Sum256(piece); !predicted[pcrs.Digest(digest[:]).String()] {
			b.Fatalf("piece %d of %d bytes is in no predicted event", i, len(piece))
		}
	}
	initrd, _ := boot.UKI.Section(".initrd")
	return append(pieces, initrd)
}

func wide(text string) (out []byte) {
	for _, unit := range utf16.Encode([]rune(text + "\x00")) {
		out = append(out, byte(unit), byte(unit>>8))
	}
	return out
}

// recorder keeps the bytes that it is asked to hash.
type recorder struct {
	hash.Hash
	written []byte
}

func (r *recorder) Write(p []byte) (int, error) {
	r.written = append(r.written, p...)
	return len(p), nil
}

func authenticode(b *testing.B, f *pe.File) []byte {
	b.Helper()
	var r recorder
	if err := f.Authenticode(&r); err != nil {
		b.Fatal(err)
	}
	return slices.Clip(r.written)
}
