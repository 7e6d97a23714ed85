package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// registerCount is how many registers a boot shows: those that the firmware and the system extend.
const registerCount = 16

// shown is what registers.service writes on the console, in every boot of the demo's releases.
var shown = regexp.MustCompile(`/proc/cmdline:.*\broothash=([0-9a-f]{64})|/sys/class/tpm/tpm0/pcr-sha256/(\d+):([0-9A-F]{64})`)

// seenBoot is what one boot showed on the console: the root hash of its release, and its registers.
type seenBoot struct {
	root      string
	registers map[int]string
}

// bootsOf reads boots out of a console's log. A boot begins with its command line.
func bootsOf(log []byte) (boots []seenBoot) {
	for _, m := range shown.FindAllSubmatch(log, -1) {
		if len(m[1]) > 0 {
			boots = append(boots, seenBoot{string(m[1]), map[int]string{}})
		} else if n, err := strconv.Atoi(string(m[2])); err == nil && len(boots) > 0 {
			boots[len(boots)-1].registers[n] = string(m[3])
		}
	}
	return boots
}

// judgeBoots holds each boot of a node that its console shows since the last time to what was predicted for its release, and returns the
// releases' names in their order.
func (d *demo) judgeBoots(n *node) (names []string, err error) {
	f, err := os.Open(filepath.Join(n.folder, "console.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	log, err := io.ReadAll(io.NewSectionReader(f, n.judged, 1<<40))
	if err != nil {
		return nil, err
	}
	n.judged += int64(len(log))
	for _, b := range bootsOf(log) {
		name, err := d.judge(n, b)
		if err != nil {
			return names, fmt.Errorf("a boot of %s: %w", n.name, err)
		}
		names, n.runs = append(names, name), name
		fmt.Printf("%s booted %s: %d of %d registers as predicted\n", n.name, name, registerCount, registerCount)
	}
	return names, nil
}

// judge compares a boot with the document of its release for this machine, which was made before the release was offered.
func (d *demo) judge(n *node, b seenBoot) (name string, err error) {
	for _, r := range d.releases {
		text, err := os.ReadFile(d.document(r, n))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		document, err := measurements.Parse(text)
		if err != nil {
			return "", err
		}
		if document.Image.RootHash.String() == b.root {
			return r.name, b.compare(document)
		}
	}
	return "", fmt.Errorf("root hash %s is of no release that was predicted", b.root)
}

// compare holds all registers to a document. When they are shown the agent has measured nothing yet: PCR 8 will hold the node's
// configuration, and PCR 15 will be its fuse.
func (b seenBoot) compare(document measurements.Document) error {
	want := document.Values(pcrs.SHA256)
	zero := pcrs.Digest(make([]byte, pcrs.SHA256.Size()))
	want[pcrs.Register(8)], want[pcrs.Register(15)] = zero, zero
	for i := range registerCount {
		value, ok := want[pcrs.Register(i)]
		if !ok {
			return fmt.Errorf("PCR %d was not predicted", i)
		}
		if got := b.registers[i]; got != fmt.Sprintf("%X", []byte(value)) {
			return fmt.Errorf("PCR %d is %s, and %X was predicted", i, got, []byte(value))
		}
	}
	return nil
}
