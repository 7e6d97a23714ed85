//go:build explore

package explore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/etcdwal"
)

// A control plane's member of etcd: the log on its disk, and what is known to be in it.

// walFile is where the log is on the state disk.
const walFile = "var/lib/etcd/member/wal/0000000000000000-0000000000000000.wal"

// wal is the log of a member with so many entries, as etcd writes it (package etcdwal).
func wal(member, entries uint64) []byte {
	var out []byte
	var crc uint32
	numbers := func(data []byte, all ...uint64) (b []byte) {
		for i, n := range all {
			b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(i+1), protowire.VarintType), n)
		}
		if data != nil {
			b = protowire.AppendBytes(protowire.AppendTag(b, protowire.Number(len(all)+1), protowire.BytesType), data)
		}
		return b
	}
	frame := func(record []byte) {
		padding := (8 - len(record)%8) % 8
		head := binary.LittleEndian.AppendUint64(nil, uint64(len(record)))
		if padding > 0 {
			head[7] = 0x80 | byte(padding)
		}
		out = append(append(append(out, head...), record...), make([]byte, padding)...)
	}
	record := func(kind uint64, data []byte) {
		crc = crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), data)
		frame(numbers(data, kind, uint64(crc)))
	}
	frame(numbers(nil, 4, 0))
	record(1, numbers(nil, member, 1))
	for i := range entries {
		record(2, numbers([]byte("x"), 0, 1, i+1))
	}
	record(3, numbers(nil, 1, 0, entries))
	return out
}

// etcdText says of a log whose it is, and how long.
func etcdText(content string) string {
	s := memberOf(map[string]string{walFile: content})
	return fmt.Sprintf("j%d last %d", s.Member, s.Last)
}

// memberOf reads the member's state out of the files of a disk, zero if there is none.
func memberOf(files map[string]string) hullmark.EtcdState {
	dir, err := os.MkdirTemp("/dev/shm", "wal")
	must(err)
	defer os.RemoveAll(dir)
	name := filepath.Base(walFile)
	if files[walFile] == "" {
		return hullmark.EtcdState{}
	}
	must(os.WriteFile(filepath.Join(dir, name), []byte(files[walFile]), 0o600))
	s, err := etcdwal.Read(os.DirFS(dir))
	must(err)
	return s
}

// grows lets the member of a Ready machine take an entry, and acknowledge it.
func (r *run) grows(i int) {
	d := &r.w.disks[r.w.machines[i].disk]
	s := memberOf(d.files)
	d.files = maps.Clone(d.files)
	d.files[walFile] = string(wal(s.Member, s.Last+1))
}

// noteMember is called when the cluster knows for sure what the member on the disk of the machine that runs has acknowledged.
func (r *run) noteMember() {
	if s := memberOf(r.at().held()); s.Member != 0 && !r.forgot(r.at().held()) {
		r.w.noted = s
	}
}

// forgot reports whether a disk's member has less than is known of it, or was given up.
func (r *run) forgot(files map[string]string) bool {
	s := memberOf(files)
	return s.Member == 0 || s.Member == r.w.removed || r.w.noted.Member == s.Member && s.Last < r.w.noted.Last
}

// checkVote looks at the member that is about to vote.
func (r *run) checkVote() {
	if r.site.scenario.role == hullmark.ControlPlane && r.forgot(r.at().held()) {
		r.violate("a member of etcd votes that forgot what it had acknowledged")
	}
}

// givesUp is called when a join service tells a control plane that comes back to join anew.
func (r *run) givesUp(machine int) {
	d := &r.w.disks[r.w.machines[machine].disk]
	files := r.site.places[machine].held()
	if !r.forgot(files) {
		r.violate("a member of etcd is given up that forgot nothing")
	}
	if s := memberOf(files); s.Member != 0 {
		r.w.removed = s.Member
	}
	d.anew = true
}

// forgeEtcd is what a host does with the files of etcd: it makes a copy of the disk in which they are older, or gone.
func (r *run) forgeEtcd(i int) (all []choice) {
	m := &r.w.machines[i]
	s := memberOf(r.w.disks[m.disk].files)
	if s.Last < 2 || r.site.scenario.role != hullmark.ControlPlane {
		return nil
	}
	for what, content := range map[string]string{"an older": string(wal(s.Member, s.Last-1)), "no": ""} {
		all = append(all, fault(&r.w.left.Etcd, fmt.Sprintf("disk %d is copied with %s etcd", m.disk, what), func() {
			d := r.w.disks[m.disk]
			d.files = maps.Clone(d.files)
			if d.files[walFile] = content; content == "" {
				delete(d.files, walFile)
			}
			r.w.disks = append(r.w.disks, d)
		})...)
	}
	if len(all) == 2 && strings.Contains(all[0].text, "no etcd") {
		all[0], all[1] = all[1], all[0]
	}
	return all
}
