package cluster

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// accepting returns a policy that accepts these documents.
func accepting(t *testing.T, version uint64, documents ...measurements.Document) measurements.Policy {
	t.Helper()
	p := measurements.Policy{Version: version}
	for _, d := range documents {
		id, err := d.Digest()
		if err != nil {
			t.Fatal(err)
		}
		p.Documents = append(p.Documents, measurements.Accepted{Document: id})
	}
	return p
}

func TestSetPolicyKeepsWhatItAccepts(t *testing.T) {
	f := newFile(t)
	first, second := nodetest.Document(t, "first"), nodetest.Document(t, "second")
	set := func(p measurements.Policy, documents ...measurements.Document) error {
		return f.Update(func(c *Cluster) error { return c.SetPolicy(p, documents...) })
	}
	if err := set(accepting(t, 1, first), second); err == nil || !strings.Contains(err.Error(), "not in the cluster file") {
		t.Errorf("a document that nobody has was accepted: %v", err)
	}
	if err := set(accepting(t, 1, first), first, second); err != nil {
		t.Fatal(err)
	}
	signed := bytes.Clone(f.Cluster.Policy)
	if err := set(accepting(t, 1, first)); err != nil || !bytes.Equal(f.Cluster.Policy, signed) {
		t.Errorf("the same policy was signed anew: %v", err)
	}
	if err := set(accepting(t, 1, first, second), second); err == nil {
		t.Error("another policy of the same version was signed")
	}
	if err := set(accepting(t, 2, second, first), second); err != nil {
		t.Fatal(err)
	}
	got, err := reopen(t, f).Cluster.AcceptedDocuments()
	if err != nil || len(got) != 2 {
		t.Fatalf("%d documents, %v", len(got), err)
	}
	if id, err := got[0].Digest(); err != nil || id != accepting(t, 2, second).Documents[0].Document {
		t.Errorf("the order changed: %v, %v", id, err)
	}
	if err := set(accepting(t, 3, second)); err != nil || len(f.Cluster.Documents) != 1 {
		t.Errorf("%d documents are kept of a policy with one, %v", len(f.Cluster.Documents), err)
	}
}

func TestSetPolicyRefuses(t *testing.T) {
	c := newFile(t).Cluster
	var many []measurements.Document
	for n := range MaxDocuments + 1 {
		many = append(many, nodetest.Document(t, strings.Repeat("x", n+1)))
	}
	if err := c.SetPolicy(accepting(t, 1, many...), many...); err == nil || !strings.Contains(err.Error(), "at most 32 documents") {
		t.Errorf("too many documents: %v", err)
	}
	if err := c.SetPolicy(accepting(t, 1, many[1:]...), many...); err != nil {
		t.Errorf("one less: %v", err)
	}
	lower := accepting(t, 2)
	raised := accepting(t, 3)
	raised.MinimumSVN = 2
	if err := c.SetPolicy(raised); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]measurements.Policy{"a lower version": lower, "a lower security version": accepting(t, 4)} {
		if err := c.SetPolicy(p); err == nil {
			t.Errorf("%s was signed", name)
		}
	}
}

func TestDecodeRefusesOtherDocuments(t *testing.T) {
	f := newFile(t)
	document := nodetest.Document(t, "image")
	if err := f.Cluster.SetPolicy(accepting(t, 1, document), document); err != nil {
		t.Fatal(err)
	}
	for id := range f.Cluster.Documents {
		f.Cluster.Documents[id] = []byte("{}")
	}
	plain, err := f.Cluster.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(plain); err == nil || !strings.Contains(err.Error(), "another digest") {
		t.Errorf("got %v", err)
	}
}

func TestFilesCarryPolicyDocumentsAndSettings(t *testing.T) {
	c := newFile(t).Cluster
	document := nodetest.Document(t, "image")
	if err := c.SetPolicy(accepting(t, 1, document), document); err != nil {
		t.Fatal(err)
	}
	c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, file := range files {
		found[file.GetPath()] = file.GetContent()
	}
	id := accepting(t, 1, document).Documents[0].Document
	if _, err := measurements.Parse(found["/var/lib/hullmark/documents/"+id.String()+".json"]); err != nil {
		t.Error(err)
	}
	if s, err := joinservice.ParseSettings(found["/var/lib/hullmark/settings.json"]); err != nil || !reflect.DeepEqual(s, *c.Settings) {
		t.Errorf("settings %+v, %v", s, err)
	}
}

func TestCheckEpoch(t *testing.T) {
	node, known := hullmark.EKID{1}, DiskEpoch{Disk: hullmark.UUID{2}, Epoch: 5}
	c := &Cluster{}
	if err := c.CheckEpoch(node, known); err != nil {
		t.Errorf("a machine of which nothing is known: %v", err)
	}
	c.KeepEpoch(node, known)
	for name, found := range map[string]DiskEpoch{"an older copy": {Disk: known.Disk, Epoch: 4}, "another disk": {Disk: hullmark.UUID{3}, Epoch: 9}} {
		var condition *hullmark.Condition
		if err := c.CheckEpoch(node, found); !errors.As(err, &condition) || condition.Code != "rollback-detected" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, found := range map[string]DiskEpoch{"the same": known, "a newer one": {Disk: known.Disk, Epoch: 6}} {
		if err := c.CheckEpoch(node, found); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeepEpochMovesTheFirstNodesRecord(t *testing.T) {
	node, disk := hullmark.EKID{1}, hullmark.UUID{2}
	for name, c := range map[string]struct {
		found DiskEpoch
		want  joinservice.FirstRecord
	}{
		"newer":   {DiskEpoch{Disk: disk, Epoch: 9}, joinservice.FirstRecord{EKID: node, Disk: disk, Committed: 9, Issued: 9}},
		"older":   {DiskEpoch{Disk: disk, Epoch: 2}, joinservice.FirstRecord{EKID: node, Disk: disk, Committed: 2, Issued: 6}},
		"another": {DiskEpoch{Disk: hullmark.UUID{3}, Epoch: 2}, joinservice.FirstRecord{EKID: node, Disk: hullmark.UUID{3}, Committed: 2, Issued: 2}},
	} {
		before := &joinservice.FirstRecord{EKID: node, Disk: disk, Committed: 5, Issued: 6}
		cluster := &Cluster{First: before}
		cluster.KeepEpoch(node, c.found)
		if *cluster.First != c.want || cluster.Epochs[node] != c.found {
			t.Errorf("%s: got %+v, %+v", name, *cluster.First, cluster.Epochs[node])
		}
		if before.Committed != 5 {
			t.Errorf("%s: the record that was given changed", name)
		}
	}
	other := &Cluster{First: &joinservice.FirstRecord{EKID: hullmark.EKID{8}, Committed: 5}}
	other.KeepEpoch(node, DiskEpoch{Disk: disk, Epoch: 1})
	if other.First.Committed != 5 {
		t.Error("another machine's epoch moved the first node's record")
	}
}

func TestRebindMovesTheRecord(t *testing.T) {
	from, to, disk := hullmark.EKID{1}, hullmark.EKID{2}, hullmark.UUID{3}
	c := &Cluster{First: &joinservice.FirstRecord{EKID: from, Disk: disk, Committed: 5, Issued: 6}, Initialised: &from}
	c.KeepEpoch(from, DiskEpoch{Disk: disk, Epoch: 5})
	c.Rebind(from, to)
	_, old := c.Epochs[from]
	if old || c.Epochs[to] != (DiskEpoch{Disk: disk, Epoch: 5}) || c.First.EKID != to || *c.Initialised != to {
		t.Errorf("got %+v, %+v, %v", c.Epochs, c.First, c.Initialised)
	}
	c.Rebind(from, hullmark.EKID{9})
	if c.Epochs[to].Epoch != 5 || c.First.EKID != to {
		t.Error("the rebind of a machine that is not known changed another's record")
	}
}

// A member of etcd with less than the operator's file has heard of is refused, also on a disk whose epoch is the newest; once
// accepted, it is what the file holds it to.
func TestCheckEtcdMember(t *testing.T) {
	node, disk := hullmark.EKID{1}, hullmark.UUID{2}
	known := hullmark.EtcdState{Cluster: 1, Member: 2, Term: 3, Vote: 2, Commit: 4, Last: 5, LastTerm: 3}
	less, more := known, known
	less.Last--
	more.Last++
	c := &Cluster{}
	if err := c.CheckEtcdMember(node, less); err != nil {
		t.Errorf("nothing is known: %v", err)
	}
	c.KeepEpoch(node, DiskEpoch{Disk: disk, Epoch: 5})
	c.KeepEtcdMember(node, known)
	if err := c.CheckEpoch(node, DiskEpoch{Disk: disk, Epoch: 5}); err != nil {
		t.Error(err)
	}
	for name, found := range map[string]hullmark.EtcdState{"less": less, "none": {}} {
		var condition *hullmark.Condition
		if err := c.CheckEtcdMember(node, found); !errors.As(err, &condition) || condition.Code != "rollback-detected" || condition.Next == "" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, found := range map[string]hullmark.EtcdState{"the same": known, "more": more} {
		if err := c.CheckEtcdMember(node, found); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.KeepEtcdMember(node, less)
	if c.Epochs[node] != (DiskEpoch{Disk: disk, Epoch: 5, Etcd: known}) {
		t.Errorf("the file knows %+v", c.Epochs[node])
	}
	c.KeepEpoch(node, DiskEpoch{Disk: disk, Epoch: 5, Etcd: less})
	if err := c.CheckEtcdMember(node, less); err != nil {
		t.Errorf("once it was accepted: %v", err)
	}
}
