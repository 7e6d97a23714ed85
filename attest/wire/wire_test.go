package wire_test

import (
	"crypto/sha256"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

func hello() *wire.Hello {
	return &wire.Hello{
		Version: 1, EkPublic: []byte{1}, AkPublic: []byte{2}, NodeConfig: []byte("{}"),
		Disk: wire.FromDiskClaim(hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{3}}),
	}
}

func TestHelloRoundTrip(t *testing.T) {
	raw, err := wire.EncodeHello(hello())
	if err != nil {
		t.Fatal(err)
	}
	again, err := wire.DecodeHello(raw)
	if err != nil || !proto.Equal(again, hello()) {
		t.Errorf("got %v, %v", again, err)
	}
}

func TestDecodeHelloRefuses(t *testing.T) {
	raw, err := wire.EncodeHello(hello())
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*wire.Hello){
		"long EK":          func(h *wire.Hello) { h.EkPublic = make([]byte, wire.MaxPublic+1) },
		"long AK":          func(h *wire.Hello) { h.AkPublic = make([]byte, wire.MaxPublic+1) },
		"long certificate": func(h *wire.Hello) { h.EkCertificate = make([]byte, wire.MaxCertificate+1) },
		"long config":      func(h *wire.Hello) { h.NodeConfig = make([]byte, hullmark.MaxNodeConfig+1) },
		"no disk":          func(h *wire.Hello) { h.Disk = nil },
	} {
		h := hello()
		edit(h)
		encoded, err := proto.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.DecodeHello(encoded); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, bad := range map[string][]byte{
		"unknown field": append(raw[:len(raw):len(raw)], 0x7a, 0), "truncated": raw[:len(raw)-1], "oversize": make([]byte, wire.MaxHello+1),
	} {
		if _, err := wire.DecodeHello(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCheckFromNodeRefuses(t *testing.T) {
	good := &wire.FromNode{Message: &wire.FromNode_Proof{Proof: &wire.Proof{PcrValues: make([]byte, wire.PCRValues)}}}
	if err := wire.CheckFromNode(good); err != nil {
		t.Fatal(err)
	}
	var chain *wire.Condition
	for range wire.MaxCauses + 1 {
		chain = &wire.Condition{Because: chain}
	}
	for name, m := range map[string]*wire.FromNode{
		"empty":           {},
		"short values":    {Message: &wire.FromNode_Proof{Proof: &wire.Proof{PcrValues: make([]byte, 32)}}},
		"long log":        {Message: &wire.FromNode_Proof{Proof: &wire.Proof{PcrValues: make([]byte, wire.PCRValues), EventLog: make([]byte, wire.MaxEventLog+1)}}},
		"long address":    {Message: &wire.FromNode_Opened{Opened: &wire.Opened{Issued: 1, Addresses: []string{"fe80::1%" + strings.Repeat("x", wire.MaxText)}}}},
		"long text":       {Message: &wire.FromNode_Progress{Progress: &wire.Progress{Message: strings.Repeat("x", wire.MaxText+1)}}},
		"too many causes": {Message: &wire.FromNode_Progress{Progress: &wire.Progress{Failed: chain}}},
		"no address":      {Message: &wire.FromNode_Opened{Opened: &wire.Opened{Addresses: []string{"host"}}}},
	} {
		if err := wire.CheckFromNode(m); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCheckFromVerifierRefuses(t *testing.T) {
	for name, m := range map[string]*wire.FromVerifier{
		"empty":          {},
		"short key":      {Message: &wire.FromVerifier_Ticket{Ticket: &wire.Ticket{DiskKey: []byte{1}, Uuid: make([]byte, 16), Owner: make([]byte, 32)}}},
		"long challenge": {Message: &wire.FromVerifier_Challenge{Challenge: &wire.Challenge{Secret: make([]byte, wire.MaxCredential+1)}}},
		"set-uid file":   {Message: &wire.FromVerifier_Proceed{Proceed: &wire.Proceed{Files: []*wire.File{{Path: "/x", Mode: 0o4755}}}}},
		"long manifest":  {Message: &wire.FromVerifier_Proceed{Proceed: &wire.Proceed{Manifests: [][]byte{make([]byte, wire.MaxFile+1)}}}},
		"many files":     {Message: &wire.FromVerifier_Proceed{Proceed: &wire.Proceed{Files: make([]*wire.File, wire.MaxFiles+1)}}},
	} {
		if err := wire.CheckFromVerifier(m); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestDiskClaim(t *testing.T) {
	ready := hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{1}, Generation: 2, Owner: hullmark.EKID{3}}
	got, err := wire.FromDiskClaim(ready).DiskClaim()
	if err != nil || got != ready {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, d := range map[string]*wire.Disk{
		"foreign":               {State: uint32(hullmark.DiskForeign), Uuid: make([]byte, 16)},
		"short uuid":            {State: 1, Uuid: make([]byte, 15)},
		"blank with an owner":   {State: 1, Uuid: make([]byte, 16), Owner: make([]byte, 32)},
		"blank of a generation": {State: 1, Uuid: make([]byte, 16), Generation: 1},
		"ready without owner":   {State: 3, Uuid: make([]byte, 16)},
	} {
		if _, err := d.DiskClaim(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTicketRoundTrip(t *testing.T) {
	ticket := hullmark.Ticket{Kind: hullmark.Init, Disk: hullmark.DiskGrant{
		Key: hullmark.NewSecret(make([]byte, 32)), Generation: 1, UUID: hullmark.UUID{1}, Owner: hullmark.EKID{2},
		FormatAllowed: true, Epoch: hullmark.EpochWindow{Committed: 3, Issued: 4, Unchecked: true},
	}}
	got, err := wire.FromTicket(ticket).HullmarkTicket()
	if err != nil || !got.Disk.Key.Equal(ticket.Disk.Key) {
		t.Fatal(err)
	}
	got.Disk.Key, ticket.Disk.Key = hullmark.Secret{}, hullmark.Secret{}
	if got.Disk.Epoch != ticket.Disk.Epoch || got.Kind != ticket.Kind || got.Disk.UUID != ticket.Disk.UUID || !got.Disk.FormatAllowed {
		t.Errorf("got %+v", got)
	}
	bad := wire.FromTicket(hullmark.Ticket{Kind: "other", Disk: hullmark.DiskGrant{Key: hullmark.NewSecret(make([]byte, 32))}})
	if _, err := bad.HullmarkTicket(); err == nil {
		t.Error("an unknown kind was accepted")
	}
}

func TestConditionIsCutToTheLimits(t *testing.T) {
	c := &hullmark.Condition{Code: "x", Title: strings.Repeat("é", wire.MaxText)}
	for range 2 * wire.MaxCauses {
		c = &hullmark.Condition{Code: "y", Because: c}
	}
	m := &wire.FromVerifier{Message: &wire.FromVerifier_Denied{Denied: wire.FromCondition(c)}}
	if err := wire.CheckFromVerifier(m); err != nil {
		t.Error(err)
	}
	if got := wire.FromCondition(&hullmark.Condition{Because: &hullmark.Condition{Code: "z"}}).HullmarkCondition(); got.Because.Code != "z" {
		t.Error("the cause was lost")
	}
}

func FuzzDecodeHello(f *testing.F) {
	raw, err := wire.EncodeHello(hello())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := wire.DecodeHello(data)
		if err != nil {
			return
		}
		if len(h.GetNodeConfig()) > hullmark.MaxNodeConfig || h.GetDisk() == nil {
			t.Error("a hello beyond the limits was accepted")
		}
		if claim, err := h.GetDisk().DiskClaim(); err == nil && !proto.Equal(wire.FromDiskClaim(claim), h.GetDisk()) {
			t.Errorf("the disk %v is claimed as %+v", h.GetDisk(), claim)
		}
		encoded, err := wire.EncodeHello(h)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := wire.DecodeHello(encoded); err != nil || !proto.Equal(again, h) {
			t.Errorf("%v came back as %v, %v", h, again, err)
		}
	})
}

// add adds messages as seeds.
func add[M proto.Message](f *testing.F, messages ...M) {
	f.Helper()
	for _, m := range messages {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
}

func FuzzFromNode(f *testing.F) {
	add(
		f,
		&wire.FromNode{Message: &wire.FromNode_Proof{Proof: &wire.Proof{Quoted: []byte{1}, PcrValues: make([]byte, wire.PCRValues)}}},
		&wire.FromNode{Message: &wire.FromNode_Hello{Hello: []byte{1}}},
		&wire.FromNode{Message: &wire.FromNode_Opened{Opened: &wire.Opened{Issued: 1, Addresses: []string{"192.0.2.1", "2001:db8::1"}, LastBoot: "x"}}},
		&wire.FromNode{Message: &wire.FromNode_Progress{Progress: &wire.Progress{
			Phase: "KUBEADM", Failed: &wire.Condition{Code: "a", Because: &wire.Condition{Code: "b"}},
		}}},
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &wire.FromNode{}
		if proto.Unmarshal(data, m) != nil || wire.CheckFromNode(m) != nil {
			return
		}
		if p := m.GetProof(); p != nil && len(p.GetPcrValues()) != wire.PCRValues {
			t.Error("a proof of another size was accepted")
		}
		for _, text := range m.GetOpened().GetAddresses() {
			if _, err := netip.ParseAddr(text); err != nil {
				t.Errorf("%q was accepted as an address", text)
			}
		}
		causes := 0
		for c := m.GetProgress().GetFailed().HullmarkCondition(); c != nil; c = c.Because {
			causes++
		}
		if causes > wire.MaxCauses {
			t.Errorf("%d causes were accepted", causes)
		}
	})
}

func FuzzFromVerifier(f *testing.F) {
	add(
		f,
		&wire.FromVerifier{Message: &wire.FromVerifier_Call{Call: &wire.Call{Kind: "init"}}},
		&wire.FromVerifier{Message: &wire.FromVerifier_Challenge{Challenge: &wire.Challenge{Credential: []byte{1}, Secret: []byte{2}}}},
		&wire.FromVerifier{Message: &wire.FromVerifier_Ticket{Ticket: wire.FromTicket(hullmark.Ticket{Kind: hullmark.Join, Disk: hullmark.DiskGrant{
			Key: hullmark.NewSecret(make([]byte, 32)), Generation: 1, FormatAllowed: true, Epoch: hullmark.EpochWindow{Committed: 1, Issued: 2},
		}})}},
		&wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: &wire.Proceed{
			NodeName: "w", Role: "worker", Files: []*wire.File{{Path: "/x", Mode: 0o600}}, Snapshot: &wire.Snapshot{Size: 1, Bump: 1, Sha256: make([]byte, 32), Backup: make([]byte, 32)},
		}}},
		&wire.FromVerifier{Message: &wire.FromVerifier_Denied{Denied: &wire.Condition{Code: "denied"}}},
		&wire.FromVerifier{Message: &wire.FromVerifier_Snapshot{Snapshot: []byte{1}}},
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &wire.FromVerifier{}
		if proto.Unmarshal(data, m) != nil || wire.CheckFromVerifier(m) != nil {
			return
		}
		if given := m.GetTicket(); given != nil {
			if ticket, err := given.HullmarkTicket(); err == nil && !proto.Equal(wire.FromTicket(ticket), given) {
				t.Error("the ticket means another one")
			}
		}
		for _, file := range m.GetProceed().GetFiles() {
			if file.GetMode()&^0o777 != 0 || len(file.GetContent()) > wire.MaxFile {
				t.Errorf("a file of mode %o and %d bytes was accepted", file.GetMode(), len(file.GetContent()))
			}
		}
		denied := &wire.FromVerifier{Message: &wire.FromVerifier_Denied{Denied: wire.FromCondition(m.GetDenied().HullmarkCondition())}}
		if m.GetDenied() != nil && !proto.Equal(denied, m) {
			t.Error("the denial means another one")
		}
	})
}

func FuzzEpoch(f *testing.F) {
	claim := &wire.EpochClaim{Ekid: make([]byte, 32), Uuid: make([]byte, 16), Generation: 1, Owner: make([]byte, 32), Epoch: 7}
	raw, err := proto.Marshal(claim)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	add(f, &wire.EpochFromNode{Message: &wire.EpochFromNode_Ask{Ask: &wire.EpochAsk{Claim: raw, Mac: make([]byte, 32)}}},
		&wire.EpochFromNode{Message: &wire.EpochFromNode_Stored{Stored: &wire.EpochStored{Issued: 8}}})
	add(f, &wire.EpochFromService{Message: &wire.EpochFromService_Issued{Issued: &wire.EpochIssued{Issued: 8}}},
		&wire.EpochFromService{Message: &wire.EpochFromService_Denied{Denied: &wire.Condition{Code: "epoch-early"}}})
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := wire.DecodeEpochClaim(data); err == nil && (len(data) > wire.MaxEpochClaim || len(c.GetEkid()) != 32 || len(c.GetUuid()) != 16 || len(c.GetOwner()) != 32) {
			t.Errorf("%v was accepted as a claim", c)
		}
		n := &wire.EpochFromNode{}
		if proto.Unmarshal(data, n) == nil && wire.CheckEpochFromNode(n) == nil && n.GetAsk() != nil && len(n.GetAsk().GetMac()) != 32 {
			t.Errorf("%v was accepted as EpochAsk", n)
		}
		s := &wire.EpochFromService{}
		if proto.Unmarshal(data, s) == nil && wire.CheckEpochFromService(s) == nil && s.GetMessage() == nil {
			t.Error("an empty answer was accepted")
		}
	})
}

// FuzzUpdate wants what a node says of its slots, and what it is told to do with them, to be bounded, and an order to bring the
// document that its direction names.
func FuzzUpdate(f *testing.F) {
	status, err := wire.EncodeUpdateStatus(hullmark.UpdateStatus{Running: "a", Default: "b", A: hullmark.RootHash{1}, Phase: hullmark.UpdateTrial, Serial: 4, Failed: &hullmark.Condition{Code: "trial-failed"}})
	if err != nil {
		f.Fatal(err)
	}
	claim, err := proto.Marshal(&wire.UpdateClaim{Ekid: make([]byte, 32), Uuid: make([]byte, 16), Generation: 1, Owner: make([]byte, 32), Status: status})
	if err != nil {
		f.Fatal(err)
	}
	document := []byte("{}")
	order, err := wire.NewUpdateOrder(hullmark.UpdateDirection{Serial: 1, Action: hullmark.UpdateTry, Document: sha256.Sum256(document)}, document, []byte("policy"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(status)
	f.Add(claim)
	add(f, &wire.UpdateAsk{Claim: claim, Mac: make([]byte, 32)})
	add(f, &wire.UpdateAnswer{Order: order}, &wire.UpdateAnswer{Denied: &wire.Condition{Code: "refused"}})
	add(f, order)
	add(f, &wire.UpdateReply{Status: status, Failed: &wire.Condition{Code: "not-staged", Because: &wire.Condition{Code: "a"}}})
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := wire.DecodeUpdateStatus(data); err == nil {
			if _, err := wire.EncodeUpdateStatus(s); err != nil && len(data) < wire.MaxUpdateStatus/6 { // JSON writes some bytes as six.
				t.Errorf("%s was read, and is not written: %v", data, err)
			}
			_ = s.Same(s)
		}
		if c, _, err := wire.DecodeUpdateClaim(data); err == nil && (len(data) > wire.MaxUpdateClaim || len(c.GetEkid()) != 32 || len(c.GetUuid()) != 16 || len(c.GetOwner()) != 32) {
			t.Errorf("%v was accepted as a claim", c)
		}
		if a := (&wire.UpdateAsk{}); proto.Unmarshal(data, a) == nil && wire.CheckUpdateAsk(a) == nil && len(a.GetMac()) != 32 {
			t.Errorf("%v was accepted as UpdateAsk", a)
		}
		if o := (&wire.UpdateOrder{}); proto.Unmarshal(data, o) == nil {
			if d, err := wire.DecodeUpdateOrder(o); err == nil && (d.Check() != nil || d.Document != (hullmark.DocumentID{}) && sha256.Sum256(o.GetDocument()) != d.Document) {
				t.Errorf("%v was accepted as an order", o)
			}
		}
		if a := (&wire.UpdateAnswer{}); proto.Unmarshal(data, a) == nil && wire.CheckUpdateAnswer(a) == nil && causes(a.GetDenied()) > wire.MaxCauses {
			t.Error("an answer with causes without end was accepted")
		}
		if r := (&wire.UpdateReply{}); proto.Unmarshal(data, r) == nil && wire.CheckUpdateReply(r) == nil && causes(r.GetFailed()) > wire.MaxCauses {
			t.Error("a reply with causes without end was accepted")
		}
	})
}

// FuzzOperator wants what is asked about an operator to be bounded, and an answer to be one thing.
func FuzzOperator(f *testing.F) {
	add(f, &wire.OperatorAsk{Key: make([]byte, 32), Name: "alice", Verb: "logs", Policy: 7})
	add(f, &wire.OperatorAnswer{May: true}, &wire.OperatorAnswer{Denied: &wire.Condition{Code: "operator-withdrawn"}}, &wire.OperatorAnswer{May: true, Denied: &wire.Condition{}})
	f.Fuzz(func(t *testing.T, data []byte) {
		if a := (&wire.OperatorAsk{}); proto.Unmarshal(data, a) == nil && wire.CheckOperatorAsk(a) == nil && (len(a.GetKey()) != 32 || len(a.GetName()) > wire.MaxText) {
			t.Errorf("%v was accepted as a question", a)
		}
		if a := (&wire.OperatorAnswer{}); proto.Unmarshal(data, a) == nil && wire.CheckOperatorAnswer(a) == nil && (a.GetMay() == (a.GetDenied() != nil) || causes(a.GetDenied()) > wire.MaxCauses) {
			t.Errorf("%v was accepted as an answer", a)
		}
	})
}

// causes counts a condition's, and itself.
func causes(c *wire.Condition) (n int) {
	for ; c != nil; c = c.GetBecause() {
		n++
	}
	return n
}
