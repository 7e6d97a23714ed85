package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"sync"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice"
)

// recoveredCredential names the boot in which this node's own disk was opened by `hullmark recover`; neverRecovered is its
// content in all others.
const recoveredCredential, neverRecovered = "recovered", "no"

// outage is what lets control planes come back unchecked while no record can be read, with disks as recent as their records were when they
// were read last. It lasts from `hullmark recover` on this node to the first record that was read; a restart of the service does
// not begin it anew. And between two control planes it is whenever one is away: etcd then decides nothing.
type outage struct {
	// boot names the boot, empty in one without recover; ended is the file that names the one whose outage is over.
	boot  string
	ended servicefiles.File
	// awaitsOnly asks this node's member of etcd whether it lacks nothing but the member of the node of a name (etcd.Members).
	awaitsOnly func(ctx context.Context, name string) (bool, error)
	log        *slog.Logger

	mutex sync.Mutex
	over  bool
	// current is set once this process has read all records: what it has seen is then as new as what etcd holds.
	current bool
	// seen are what the control planes' records said, as kept has it over boots.
	seen map[hullmark.EKID]joinservice.Seen
	kept servicefiles.File
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
	if o.current {
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

// LastSeen returns what was read last of a control plane's record.
func (o *outage) LastSeen(node hullmark.EKID) (joinservice.Seen, bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	r, ok := o.seen[node]
	return r, ok
}

// note notes all records, which were read just now.
func (o *outage) note(machines []joinservice.Machine) {
	o.end()
	seen := map[hullmark.EKID]joinservice.Seen{}
	for _, m := range machines {
		if m.Role == hullmark.ControlPlane {
			seen[m.EKID] = seenOf(m)
		}
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if !o.current {
		o.log.Info("all records were read: if this control plane is one of two, the other one may come back by it")
	}
	o.current = true
	o.keep(seen)
}

// noteOne notes a control plane's record, which was read or stored just now.
func (o *outage) noteOne(m joinservice.Machine) {
	o.end()
	o.mutex.Lock()
	defer o.mutex.Unlock()
	seen := maps.Clone(o.seen)
	delete(seen, m.EKID)
	if m.Role == hullmark.ControlPlane {
		seen[m.EKID] = seenOf(m)
	}
	o.keep(seen)
}

func seenOf(m joinservice.Machine) joinservice.Seen {
	return joinservice.Seen{Name: m.Name, Disk: m.Record, Etcd: m.Etcd}
}

// keep replaces what was seen; the mutex is held.
func (o *outage) keep(seen map[hullmark.EKID]joinservice.Seen) {
	if maps.Equal(seen, o.seen) {
		return
	}
	if err := writeSeen(o.kept, seen); err != nil {
		o.log.Warn("the control planes' records are not kept for an outage", "error", err.Error())
		return
	}
	o.seen = seen
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
