package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// Machine is what a cluster keeps of a machine, with what the cluster file knows of it.
type Machine struct {
	joinservice.Machine
	// Image is what people call the image that it booted, and Release what they call the release; both are empty if the cluster file has no
	// such document.
	Image   string `json:"image,omitempty"`
	Release string `json:"release,omitempty"`
	// OldRoot says that the configuration of its last ticket named another root than the present one.
	OldRoot bool `json:"oldRoot,omitempty"`
	// Heard is when init or recover saw its disk last: of a single control plane nothing tells a copy since.
	Heard time.Time `json:"heard,omitzero"`
}

// Machines lists what the cluster keeps of each machine, by name. Those that it can read come with an error about the others.
func (r *Reader) Machines(ctx context.Context) (listed []Machine, err error) {
	err = r.persist(ctx, func() error {
		listed, err = r.machines(ctx)
		return err
	})
	return listed, err
}

func (r *Reader) machines(ctx context.Context) ([]Machine, error) {
	c := r.known()
	records, err := r.client.List(ctx)
	if err != nil && len(records) == 0 {
		return nil, err
	}
	counted, unlisted := r.countedOnly(ctx, records)
	records, err = append(records, counted...), errors.Join(err, unlisted)
	policy, unopened := c.OpenPolicy()
	if unopened != nil {
		return nil, unopened
	}
	documents := readable(c)
	listed := make([]Machine, 0, len(records))
	for _, m := range records {
		one := Machine{Machine: m, OldRoot: namedRoot(m, policy, c.ID()) != c.ID(), Heard: c.Epochs[m.EKID].Heard}
		if document, ok := documents[m.Document]; ok {
			one.Image, one.Release = imageName(document), document.Name
		}
		listed = append(listed, one)
	}
	slices.SortStableFunc(listed, func(a, b Machine) int { return cmp.Compare(a.Name, b.Name) })
	return listed, err
}

// ImageNames returns what people call the images of the documents in a cluster file, as far as those can be read.
func ImageNames(c *cluster.Cluster) map[measurements.DocumentID]string {
	names := map[measurements.DocumentID]string{}
	for id, document := range readable(c) {
		names[id] = imageName(document)
	}
	return names
}

// readable returns the documents in a cluster file that can be read.
func readable(c *cluster.Cluster) map[measurements.DocumentID]measurements.Document {
	documents := map[measurements.DocumentID]measurements.Document{}
	for id, encoded := range c.Documents {
		if document, err := measurements.Parse(encoded); err == nil {
			documents[id] = document
		}
	}
	return documents
}

// namedRoot returns the root that a machine's configuration named at its last ticket; of one without a ticket, the present one.
func namedRoot(m joinservice.Machine, policy measurements.Policy, present hullmark.ClusterRoot) hullmark.ClusterRoot {
	if m.Record == (joinservice.Record{}) {
		return present
	}
	return cmp.Or(m.Root, policy.First(present))
}

// countedOnly returns the machines that groups count and that have no record: a first ticket is being made, or was never recorded.
func (r *Reader) countedOnly(ctx context.Context, recorded []joinservice.Machine) ([]joinservice.Machine, error) {
	counted, err := r.client.Counted(ctx)
	known := map[hullmark.EKID]bool{}
	for _, m := range recorded {
		known[m.EKID] = true
	}
	counted = slices.DeleteFunc(counted, func(m joinservice.Machine) bool { return known[m.EKID] })
	for i := range counted {
		counted[i].Phase = "counted to its group, without a record"
	}
	return counted, err
}

// errNoRecord ends the error of a machine that has none.
var errNoRecord = errors.New("hullmark node list shows what it keeps")

// find returns the one record of a node's name, or of a machine's identity.
func (a *API) find(ctx context.Context, which string) (joinservice.Machine, error) {
	machines, err := a.client.List(ctx)
	if err != nil && len(machines) == 0 {
		return joinservice.Machine{}, err
	}
	found := slices.DeleteFunc(machines, func(m joinservice.Machine) bool { return m.Name != which && m.EKID.String() != which })
	switch {
	case len(found) == 0:
		return joinservice.Machine{}, errors.Join(fmt.Errorf("the cluster keeps no record of %s; %w", which, errNoRecord), err)
	case len(found) > 1:
		return joinservice.Machine{}, fmt.Errorf("%d machines were called %s; name one by its endorsement key (hullmark node list -o json)", len(found), which)
	}
	return found[0], nil
}

// findCounted returns the machine without a record that a group counts: its first ticket was never recorded. If there is none, the
// error is missing.
func (a *API) findCounted(ctx context.Context, which string, missing error) (joinservice.Machine, error) {
	counted, err := a.client.Counted(ctx)
	if err != nil {
		return joinservice.Machine{}, err
	}
	i := slices.IndexFunc(counted, func(m joinservice.Machine) bool { return m.Name == which || m.EKID.String() == which })
	if i < 0 {
		return joinservice.Machine{}, missing
	}
	switch _, version, err := a.client.Load(ctx, counted[i].EKID); {
	case err != nil:
		return joinservice.Machine{}, err // It has one that cannot be read.
	case version != "":
		return joinservice.Machine{}, fmt.Errorf("machine %s gets its first ticket just now; run the command again", which)
	}
	return counted[i], nil
}

// refuseReady refuses what must not be done to a node that runs.
func (a *API) refuseReady(ctx context.Context, name string) error {
	ready, err := a.client.NodeReady(ctx, name)
	if err != nil || !ready {
		return err
	}
	return as(ErrDenied, fmt.Errorf("node %s is Ready: switch its machine off first, or go on all the same (--force)", name))
}
