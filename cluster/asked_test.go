package cluster

import (
	"bytes"
	"crypto/x509"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/measurements"
)

// Whoever has a root's key can read what it is asked to sign, and everything else is refused.
func TestAsked(t *testing.T) {
	k, next := newToken(t), newToken(t)
	f := newRemoteFile(t, k)
	root := f.Cluster.ID()
	if err := f.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 7}) }); err != nil {
		t.Fatal(err)
	}
	for _, node := range []hullmark.EKID{{}, {1}} {
		if _, err := f.Cluster.Operator(channel.VerbRecover, node); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Update(func(c *Cluster) error { return c.RotateRootTo(next.root()) }); err != nil {
		t.Fatal(err)
	}
	later := f.Cluster.ID()
	var said []string
	for _, message := range slices.Concat(k.asked, next.asked) {
		text, err := Asked(message)
		if err != nil {
			t.Error(err)
		}
		said = append(said, text)
		for name, changed := range map[string][]byte{
			"less": message[:len(message)-1], "more": append(bytes.Clone(message), 0), "twice": append(bytes.Clone(message), message...), "a part": message[1:],
		} {
			if text, err := Asked(changed); err == nil {
				t.Errorf("%s of %q was taken for %q", name, said[len(said)-1], text)
			}
		}
	}
	for i, want := range []string{
		"the certificate of a root, key " + root.String(), "the certificate of an online CA", "policy version 7 of root " + root.String(),
		"an operator's certificate for recover of any machine, by policy version 7", "an operator's certificate for recover of machine " + hullmark.EKID{1}.String(),
		"the certificate of a root, key " + later.String(), // The present root hands over.
		"the certificate of a root, key " + later.String(), "the certificate of an online CA", "policy version 8 of root " + later.String(),
	} {
		if i >= len(said) || !strings.HasPrefix(said[i], want) {
			t.Errorf("number %d of %q, want %q", i, said, want)
		}
	}

	service, err := channel.NewService(f.Cluster.Root.Certificate, f.Cluster.Online.Certificate, f.Cluster.Online.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(service.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, message := range map[string][]byte{
		"nothing": nil, "a join service": leaf.RawTBSCertificate, "a signed certificate": leaf.Raw, "a text": []byte("pay to the bearer"),
		"a label alone":            []byte("hullmark/v1/policy\x00"),
		"a label and a root alone": hullmark.SigningInput(hullmark.PolicyKind, root, nil),
		"no policy":                hullmark.SigningInput(hullmark.PolicyKind, root, []byte("{}")),
		"another kind":             hullmark.SigningInput("voucher", root, []byte("{}")),
	} {
		if text, err := Asked(message); err == nil {
			t.Errorf("%s was taken for %q", name, text)
		}
	}
}

func FuzzAsked(f *testing.F) {
	k := newToken(f)
	c, err := NewUnder(k.root())
	if err != nil {
		f.Fatal(err)
	}
	if err := c.SetPolicy(measurements.Policy{Version: 1}); err != nil {
		f.Fatal(err)
	}
	if _, err := c.Operator(channel.VerbInit, hullmark.EKID{1}); err != nil {
		f.Fatal(err)
	}
	for _, message := range k.asked {
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		text, err := Asked(message)
		if err != nil {
			return
		}
		for _, r := range text {
			if r < ' ' || r > '~' {
				t.Errorf("%q would write %q", message, text)
			}
		}
	})
}
