package cluster

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
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
	var said, then []string
	for i, message := range slices.Concat(k.asked, next.asked) {
		request, err := Asked(message)
		if err != nil {
			t.Error(err)
		}
		signer := root
		if i >= len(k.asked) {
			signer = later
		}
		more, err := request.By(signer)
		if err != nil {
			t.Error(err)
		}
		said, then = append(said, request.Text), append(then, more)
		for name, changed := range map[string][]byte{
			"less": message[:len(message)-1], "more": append(bytes.Clone(message), 0), "twice": append(bytes.Clone(message), message...), "a part": message[1:],
		} {
			if taken, err := Asked(changed); err == nil {
				t.Errorf("%s of %q was taken for %q", name, request.Text, taken.Text)
			}
		}
	}
	const own = "the certificate is the root's own"
	for i, want := range []struct{ text, then string }{
		{"the certificate of a root, key " + root.String(), own},
		{"the certificate of an online CA", ""},
		{"policy version 7, SHA-256 ", ""},
		{"an operator's certificate for recover of any machine, by policy version 7", ""},
		{"an operator's certificate for recover of machine " + hullmark.EKID{1}.String(), ""},
		{"the certificate of a root, key " + later.String(), "root " + root.String() + " HANDS OVER to " + later.String()},
		{"the certificate of a root, key " + later.String(), own},
		{"the certificate of an online CA", ""},
		{"policy version 8, SHA-256 ", ""},
	} {
		if i >= len(said) || !strings.HasPrefix(said[i], want.text) || !strings.HasPrefix(then[i], want.then) || want.then == "" && then[i] != "" {
			t.Errorf("number %d of %q, and then %q, want %q", i, said, then, want)
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
		if taken, err := Asked(message); err == nil {
			t.Errorf("%s was taken for %q", name, taken.Text)
		}
	}
}

// Of a policy is said what it decides, and who has the key of another root does not sign it.
func TestAskedOfAPolicy(t *testing.T) {
	root, other := hullmark.ClusterRoot{1}, hullmark.ClusterRoot{2}
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	builder, err := measurements.NewBuilder("one", key.Public())
	if err != nil {
		t.Fatal(err)
	}
	plain, full := measurements.Policy{Version: 3}, measurements.Policy{
		Version: 9, MinimumSVN: 4, OperatorsFrom: 8, Denied: []hullmark.EKID{{1}, {2}},
		Builders: measurements.Builders{Threshold: 1, Of: []measurements.Builder{builder}},
		Endpoint: &measurements.Endpoint{Address: "api.example.com:6443", Names: []string{"other.example.com"}},
	}
	for _, c := range []struct {
		policy measurements.Policy
		says   []string
		not    []string
	}{
		{plain, []string{"policy version 3, ", "of root " + root.String(), "0 of 0 builders", "minimumSVN 0", "0 denied"}, []string{"operatorsFrom", "endpoint"}},
		{full, []string{"policy version 9, ", "1 of 1 builders", "minimumSVN 4", "2 denied", "operatorsFrom 8", "endpoint api.example.com:6443 with 1 further names"}, nil},
	} {
		encoded, err := c.policy.Encode()
		if err != nil {
			t.Fatal(err)
		}
		digest := sha256.Sum256(encoded)
		request, err := Asked(hullmark.SigningInput(hullmark.PolicyKind, root, encoded))
		if err != nil {
			t.Fatal(err)
		}
		for _, says := range append(c.says, fmt.Sprintf("SHA-256 %.16s, ", hex.EncodeToString(digest[:]))) {
			if !strings.Contains(request.Text, says) {
				t.Errorf("%q does not say %q", request.Text, says)
			}
		}
		for _, not := range c.not {
			if strings.Contains(request.Text, not) {
				t.Errorf("%q says %q", request.Text, not)
			}
		}
		if more, err := request.By(root); err != nil || more != "" {
			t.Errorf("its own root: %q, %v", more, err)
		}
		if _, err := request.By(other); err == nil || !strings.Contains(err.Error(), "names root "+root.String()) {
			t.Errorf("another root: %v", err)
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
	if _, err := c.GrantOperator(granting("alice", look)); err != nil {
		f.Fatal(err)
	}
	for _, message := range k.asked {
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		request, err := Asked(message)
		if err != nil {
			return
		}
		more, _ := request.By(hullmark.ClusterRoot{1})
		for _, r := range request.Text + more {
			if r < ' ' || r > '~' {
				t.Errorf("%q would write %q", message, request.Text+more)
			}
		}
	})
}
