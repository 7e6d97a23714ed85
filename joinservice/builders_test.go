package joinservice_test

import (
	"crypto"
	"crypto/ed25519"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// attested is a site whose policy demands two of three builders.
type attested struct {
	*site
	builders measurements.Builders
	keys     map[string]crypto.Signer
}

func newAttested(t *testing.T) attested {
	t.Helper()
	a := attested{newSite(t), measurements.Builders{Threshold: 2}, map[string]crypto.Signer{}}
	for _, name := range []string{"alice", "bob", "carol"} {
		public, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		builder, err := measurements.NewBuilder(name, public)
		if err != nil {
			t.Fatal(err)
		}
		a.builders.Of, a.keys[name] = append(a.builders.Of, builder), key
	}
	return a
}

// accept puts a policy in force that accepts an image, and another release, as some builders signed the image's document.
func (a attested) accept(t *testing.T, image string, by ...string) measurements.DocumentID {
	t.Helper()
	p := a.policy.Policy()
	p.Version++
	p.Builders, p.Documents = a.builders, nil
	offer := joinservice.SignedPolicy{Documents: map[measurements.DocumentID][]byte{}}
	var last measurements.DocumentID
	for _, tag := range []string{"another", image} {
		document := nodetest.Document(t, tag)
		encoded, err := document.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if last, err = document.Digest(); err != nil {
			t.Fatal(err)
		}
		accepted := measurements.Accepted{Document: last, Enforce: []pcrs.Register{1}}
		for _, name := range by {
			signed, err := measurements.Sign(a.keys[name], nodetest.Document(t, image)) // whatever document it is given for
			if err != nil {
				t.Fatal(err)
			}
			made, err := a.builders.Signatures(signed, nodetest.Document(t, image))
			if err != nil {
				t.Fatal(err)
			}
			accepted.Signatures = append(accepted.Signatures, made...)
		}
		offer.Documents[last], p.Documents = encoded, append(p.Documents, accepted)
	}
	var err error
	if offer.Envelope, err = measurements.SignPolicy(a.cluster.Root.Key, a.cluster.ID(), p); err != nil {
		t.Fatal(err)
	}
	if taken, err := a.site.policy.Offer(offer); !taken || err != nil {
		t.Fatal(taken, err)
	}
	return last
}

// TestServiceDemandsBuilders gives no ticket for a release that one of two builders signed, and one when the second has.
func TestServiceDemandsBuilders(t *testing.T) {
	s := newAttested(t)
	for _, c := range []struct {
		by   []string
		says string
	}{
		{nil, "0 of 3 builders signed it, 2 have to: none; not alice, bob, carol"},
		{[]string{"alice"}, "1 of 3 builders signed it, 2 have to: alice; not bob, carol"},
		{[]string{"alice", "alice"}, "1 of 3 builders signed it, 2 have to: alice; not bob, carol"},
	} {
		s.accept(t, "image", c.by...)
		s.denied(t, "builders-too-few", true, "a release that too few builders have signed", c.says)
	}
	s.accept(t, "image", "carol", "alice")
	s.join(t)

	// The other release has signatures of the first one's document, which count for nothing.
	s.reboot()
	s.node.Reboot(t, "another")
	s.denied(t, "builders-too-few", true, "0 of 3 builders")
	s.node.Reboot(t, "image")
	s.join(t)
}

// TestNoDirectionToUnattested directs no node to a release before enough builders have signed it.
func TestNoDirectionToUnattested(t *testing.T) {
	s := newAttested(t)
	s.accept(t, "image", "alice", "bob")
	s.join(t)
	next := s.accept(t, "next", "bob")
	d := &direction{last: hullmark.UpdateDirection{Serial: says.Serial + 1, Action: hullmark.UpdateStage, Document: next, Sources: []string{"https://releases.example.com"}}}
	s.service.Directions = d
	if a := s.tell(t, s.node.UpdateCall(says)); a.GetDenied().GetCode() != "builders-too-few" || a.GetOrder() != nil {
		t.Errorf("%v", a)
	}
	s.accept(t, "next", "bob", "carol")
	if a := s.tell(t, s.node.UpdateCall(says)); a.GetOrder() == nil {
		t.Errorf("%v", a)
	}
}
