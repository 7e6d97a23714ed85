package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice"
)

// recoveredCredential names the boot in which this node's own disk was opened by `hullmark recover`, and behind a space the operator
// who did if the policy names him; neverRecovered is its content in all others.
const recoveredCredential, neverRecovered = "recovered", "no"

// outage is what lets control planes come back unchecked while no record can be read, with disks as recent as their records were when they
// were read last. It lasts from `hullmark recover` on this node to the first record that was read; a restart of the service does
// not begin it anew. And between two control planes it is whenever one is away: etcd then decides nothing.
type outage struct {
	// boot names the boot, empty in one without recover, and by the operator who recovered it if the policy names him; ended is the file
	// that names the one whose outage is over.
	boot  string
	by    string
	ended servicefiles.File
	// awaitsOnly asks this node's member of etcd whether it lacks nothing but the member of the node of a name (etcd.Members).
	awaitsOnly func(ctx context.Context, name string) (bool, error)
	log        *slog.Logger

	mutex sync.Mutex
	over  bool
	// read is when this process read all records last, zero before it did, or since it may have missed what others wrote.
	read time.Time
	// seen are what the control planes' records said. kept has them over boots, as written says.
	seen, written map[hullmark.EKID]joinservice.Seen
	kept          servicefiles.File
}

func newOutage(f folder, files servicefiles.Files, awaitsOnly func(context.Context, string) (bool, error), log *slog.Logger) (*outage, error) {
	boot, err := f.read(recoveredCredential)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o := &outage{boot: string(boot), ended: files.File(servicefiles.OutageOver), kept: files.File(servicefiles.ControlPlanes), awaitsOnly: awaitsOnly, log: log}
	if o.boot == neverRecovered {
		o.boot = ""
	}
	_, o.by, _ = strings.Cut(o.boot, " ")
	ended, err := o.ended.Read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o.over = o.boot == "" || string(ended) == o.boot
	content, err := o.kept.Read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if o.seen, err = readSeen(content); err != nil {
		// Without it an old disk could pass: each control plane is for the operator to recover.
		o.over, o.seen = true, map[hullmark.EKID]joinservice.Seen{}
		log.Warn("control planes cannot come back before their records can be read", "error", err.Error())
	}
	o.written = maps.Clone(o.seen)
	return o, nil
}

// readSeen reads what writeSeen wrote; no content is that of a service that saw nothing yet.
func readSeen(content []byte) (map[hullmark.EKID]joinservice.Seen, error) {
	seen := map[hullmark.EKID]joinservice.Seen{}
	if content == nil {
		return seen, nil
	}
	if err := hullmark.DecodeStrict(content, len(content), &seen); err != nil {
		return nil, fmt.Errorf("%s: %w", servicefiles.ControlPlanes, err)
	}
	return seen, nil
}

// LetsBack reports whether a control plane may come back unchecked.
func (o *outage) LetsBack(ctx context.Context, node hullmark.EKID) bool {
	o.mutex.Lock()
	lasts, name := !o.over, ""
	if !o.read.IsZero() && o.othersThan(node) <= 1 {
		name = o.seen[node].Name
	}
	o.mutex.Unlock()
	if lasts || name == "" {
		return lasts
	}
	awaited, err := o.awaitsOnly(ctx, name)
	if err != nil {
		o.log.Warn("whether this member of etcd lacks only that of "+name+" is not known", "error", err.Error())
	}
	return awaited
}

// othersThan counts the control planes beside one that may have a vote by their records: a host could have put the member of etcd back
// to a time at which there were two. The mutex is held.
func (o *outage) othersThan(node hullmark.EKID) (others int) {
	for id, seen := range o.seen {
		if id != node && seen.Disk.Committed > 0 {
			others++
		}
	}
	return others
}

// LastSeen returns what was read last of a control plane's record.
func (o *outage) LastSeen(node hullmark.EKID) (joinservice.Seen, bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	r, ok := o.seen[node]
	r.Current = !o.read.IsZero()
	return r, ok
}

// note notes all records, which were read just now.
func (o *outage) note(machines []joinservice.Machine) {
	o.end()
	seen := map[hullmark.EKID]joinservice.Seen{}
	o.mutex.Lock()
	for _, m := range machines {
		if m.Role == hullmark.ControlPlane {
			seen[m.EKID] = newer(o.seen[m.EKID], seenOf(m))
		}
	}
	if o.read.IsZero() {
		o.log.Info("all records were read: if this control plane is one of two, the other one may come back by it")
	}
	o.read, o.seen = time.Now(), seen
	content := maps.Clone(seen)
	o.mutex.Unlock()
	o.keep(content)
}

// noteOne notes a control plane's record, which was read or stored just now; for another boot it is kept with the next of all.
func (o *outage) noteOne(m joinservice.Machine) {
	o.end()
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if m.Role != hullmark.ControlPlane {
		delete(o.seen, m.EKID)
		return
	}
	o.seen[m.EKID] = newer(o.seen[m.EKID], seenOf(m))
}

// longestUnread is how long all records may not have been read while etcd decides, before what was seen is no longer taken for the newest.
const longestUnread = time.Minute

// doubt notes that the records could not be read, or not all. While this member of etcd lacks the other one of two, nobody writes any.
// Otherwise others may, and this service does not hear of it: so it has to read all again.
func (o *outage) doubt(ctx context.Context) {
	o.mutex.Lock()
	since, seen := time.Since(o.read), maps.Clone(o.seen)
	known := !o.read.IsZero()
	o.mutex.Unlock()
	if !known || since < longestUnread {
		return
	}
	for _, each := range seen {
		if each.Name == "" {
			continue
		}
		if awaited, err := o.awaitsOnly(ctx, each.Name); err == nil && awaited || ctx.Err() != nil {
			return
		}
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.read = time.Time{}
	o.log.Warn("the records could not all be read for too long: if this control plane is one of two, the other one cannot come back by it until they are")
}

// newer returns what was found just now, unless that was read before what is known already: a disk's numbers go back by an override alone.
func newer(known, found joinservice.Seen) joinservice.Seen {
	a, b := known.Disk, found.Disk
	if a.Disk == b.Disk && cmp.Or(cmp.Compare(a.Serial, b.Serial), cmp.Compare(a.Issued, b.Issued), cmp.Compare(a.Committed, b.Committed)) > 0 {
		return known
	}
	return found
}

func seenOf(m joinservice.Machine) joinservice.Seen {
	return joinservice.Seen{Name: m.Name, Disk: m.Record, Etcd: m.Etcd}
}

// keep writes what was seen for another boot, but names. Only one goroutine does, and the map is its own.
func (o *outage) keep(seen map[hullmark.EKID]joinservice.Seen) {
	for node, each := range seen {
		each.Name = ""
		seen[node] = each
	}
	if maps.Equal(seen, o.written) {
		return
	}
	if err := writeSeen(o.kept, seen); err != nil {
		o.log.Warn("the control planes' records are not kept for an outage", "error", err.Error())
		return
	}
	o.written = seen
}

// writeSeen replaces the file; after a crash it holds the old content or the new.
func writeSeen(file servicefiles.File, seen map[hullmark.EKID]joinservice.Seen) error {
	content, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	return file.Write(content)
}

// end notes that a record was read.
func (o *outage) end() {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.over {
		return
	}
	o.over = true
	o.log.Info("the cluster's records can be read: from now on every control plane is checked against its own")
	if err := o.ended.Write([]byte(o.boot)); err != nil {
		o.log.Warn("a restart of the service would not know that the outage is over", "error", err.Error())
	}
}

// attentive are records that end the outage when one was read, and note control planes'.
type attentive struct {
	joinservice.Records
	outage *outage
}

func (a attentive) Load(ctx context.Context, node hullmark.EKID) (joinservice.Machine, joinservice.Version, error) {
	m, v, err := a.Records.Load(ctx, node)
	if err == nil {
		a.outage.noteOne(m)
	}
	return m, v, err
}

func (a attentive) Store(ctx context.Context, m joinservice.Machine, v joinservice.Version) (joinservice.Version, error) {
	next, err := a.Records.Store(ctx, m, v)
	if err == nil {
		a.outage.noteOne(m)
	}
	return next, err
}
