//go:build explore

package explore

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// The world as the edited code sees it.

func (r *run) Registers() [16][32]byte {
	m := &r.w.machines[r.cur.machine]
	registers := r.site.registers
	if m.pcr8 {
		registers[attest.ConfigRegister] = attest.Extended(hullmark.ConfigEvent(r.site.config))
	}
	if m.fused {
		registers[attest.FuseRegister] = attest.Extended(hullmark.ClusterEvent(r.site.cluster.ID()))
	}
	return registers
}

func (r *run) Extend(pcr int, _ []byte) error {
	m := &r.w.machines[r.cur.machine]
	switch pcr {
	case attest.ConfigRegister:
		m.pcr8 = true
	case attest.FuseRegister:
		r.step("blow the fuse", "")
		m.fused = true
	default:
		return fmt.Errorf("nobody extends PCR %d", pcr)
	}
	return nil
}

func (r *run) Keys() (ek, ak []byte) {
	return r.site.eks[r.cur.machine], r.site.ak
}

func (r *run) Unwrap(secret, node []byte) (hullmark.Secret, error) {
	if id := r.site.nodes[r.cur.machine]; !bytes.Equal(id[:], node) {
		return hullmark.Secret{}, errors.New("the challenge is for another TPM")
	}
	return hullmark.NewSecret(bytes.Clone(secret)), nil
}

func (r *run) Random(b []byte) {
	r.w.uuids++
	clear(b)
	b[0] = byte(r.w.uuids)
	b[15] = 1
}

func (r *run) Probe(f io.ReaderAt, size int64) (hullmark.DiskClaim, error) {
	key := r.disk().shows()
	if c, ok := probed[key]; ok {
		return c, nil
	}
	c, err := statedisk.Probe(f, size)
	if err == nil {
		probed[key] = c
	}
	return c, err
}

// disk is what is attached to the machine whose process runs.
func (r *run) disk() *disk { return &r.w.disks[r.w.machines[r.cur.machine].disk] }

func (r *run) at() *place { return r.site.places[r.cur.machine] }

var writes = map[int64]string{0: "write the LUKS area", statedisk.OffsetA: "write record A", statedisk.OffsetB: "write record B"}

func (r *run) Write(f *os.File, b []byte, offset int64) error {
	r.pending = b
	r.step(writes[offset], "")
	d := r.disk()
	if d.joined {
		r.violate("a disk that held a joined node is overwritten")
	}
	for i := range r.w.disks {
		if id, begun := r.w.disks[i].identity(); begun && r.w.disks[i].joined && id.Owner == r.site.nodes[r.cur.machine] {
			r.violate("a joined node is given up for an empty disk")
		}
	}
	d.write(b, offset, false)
	_, err := f.WriteAt(b, offset)
	r.at().shown = d.shows()
	return err
}

func (d *disk) write(b []byte, offset int64, torn bool) {
	switch offset {
	case statedisk.OffsetA:
		d.a, d.aTorn = string(b), torn
	case statedisk.OffsetB:
		d.b = string(b)
	default:
		u, err := hullmark.ParseUUID(string(b[168:204]))
		must(err)
		d.area, d.areaTorn = u, torn
	}
}

func (r *run) Format(header, uuid string, key []byte) error {
	r.step("format", "")
	d := r.disk()
	if d.joined {
		r.violate("a disk that held a joined node is formatted")
	}
	u, err := hullmark.ParseUUID(uuid)
	must(err)
	d.key, d.opened = sha256.Sum256(key), map[string]bool{}
	fillTree(r.at().state(), nil)
	// It is read whole: what follows the LUKS area are zeros.
	return os.WriteFile(header, area(u), 0o600)
}

func (r *run) Activate(key []byte) error {
	if r.disk().key != sha256.Sum256(key) {
		return errors.New("no key available with this passphrase")
	}
	return nil
}

func (r *run) Mounted(do func(*os.Root) error) error {
	root, err := os.OpenRoot(r.at().state())
	must(err)
	defer root.Close()
	err = do(root)
	r.w.machines[r.cur.machine].stored = r.at().held()
	return err
}

// Storing and Stored are called around the replacing of a manifest with an epoch and an intent.
func (r *run) Storing(epoch uint64, intent string) {
	r.step(fmt.Sprintf("store the manifest, %q", strings.TrimSpace(intent)), "")
	m := &r.w.machines[r.cur.machine]
	if b, _ := os.ReadFile(filepath.Join(r.at().state(), statedisk.ManifestFile)); m.wrote != "" && string(b) != m.wrote {
		r.violate("a node goes on from a manifest that it did not write")
	}
}

func (r *run) Stored(epoch uint64, intent string) {
	m := &r.w.machines[r.cur.machine]
	b, err := os.ReadFile(filepath.Join(r.at().state(), statedisk.ManifestFile))
	must(err)
	stored := map[string]string{}
	maps.Copy(stored, m.stored)
	stored[statedisk.ManifestFile] = string(b)
	m.stored, m.wrote = stored, string(b)
	if d := r.disk(); d.last != int(epoch) || len(d.opened) == 0 {
		r.advanced(epoch)
	}
	r.disk().manifest = string(b)
	r.checkKeys(r.disk())
	switch d := r.disk(); {
	case intent == statedisk.IntentDone && !d.anew:
		d.joined = true
	case intent == statedisk.IntentStarted && d.anew:
		d.joined, d.anew = false, false
	}
	if m.mode == ready {
		r.step("stored the manifest", "") // Its agent may be killed before it notes that.
	}
}

// advanced is called when an opened disk got a ticket's number.
func (r *run) advanced(epoch uint64) {
	d, e := r.disk(), strconv.FormatUint(epoch, 10)
	if d.b == "" {
		return // It is being formatted.
	}
	if d.opened[e] {
		r.violate("a disk was opened twice with one ticket")
	}
	d.opened = maps.Clone(d.opened)
	d.opened[e] = true
	d.last = int(epoch)
	ready, err := statedisk.DecodeB([]byte(d.b))
	must(err)
	if ready.Owner != r.site.nodes[r.cur.machine] {
		r.violate("a disk was opened by another than its owner")
	}
}

func (r *run) Sync() {
	r.step("sync", "")
	r.w.machines[r.cur.machine].stored = r.at().held()
}

// statusCode is the code of the condition in a status document.
func statusCode(document []byte) string {
	var d struct{ Condition *hullmark.Condition }
	must(json.Unmarshal(document, &d))
	if d.Condition != nil {
		return d.Condition.Root().Code
	}
	return ""
}
