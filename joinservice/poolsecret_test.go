package joinservice_test

import (
	"errors"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

const secretFile = "/etc/kubernetes/storage/password"

// withSecret gives the site's machine a pool with a file that has this text in it.
func withSecret(text string) func(*measurements.Policy) {
	return func(p *measurements.Policy) {
		p.Members[0].Pool = "storage"
		p.Pools = []measurements.Pool{{Name: "storage", Files: []measurements.PlacedFile{{Path: secretFile, Mode: "0600", Content: "password: " + text + "\n"}}}}
	}
}

// A secret is text in the policy, and itself only in what a machine is brought that has opened its disk. One that cannot be opened
// brings the machine nothing.
func TestSecretOfAPool(t *testing.T) {
	s := newSite(t)
	encrypted := func(c *cluster.Cluster) string {
		t.Helper()
		e, err := c.Keys.Encrypt(c.ID(), secretFile, hullmark.NewSecret([]byte("open sesame")))
		if err != nil {
			t.Fatal(err)
		}
		return e.String()
	}
	s.accept(t, withSecret(encrypted(s.cluster)), "image")
	s.join(t)
	if got := s.file(secretFile); got != "password: open sesame\n" {
		t.Errorf("the node was brought %q", got)
	}
	other, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	foreign := encrypted(other)
	s.reboot()
	s.accept(t, withSecret(foreign), "image")
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	s.told(t, "pool-secret", true, secretFile)
	// Whoever signs is told before it is signed.
	var bad measurements.Policy
	bad.Members = []measurements.Member{{}}
	withSecret(foreign)(&bad)
	var c *hullmark.Condition
	if err := joinservice.CheckSecrets(bad, s.cluster.Keys, s.cluster.ID()); !errors.As(err, &c) || c.Code != "pool-secret" {
		t.Errorf("%v", err)
	}
	withSecret(encrypted(s.cluster))(&bad)
	if err := joinservice.CheckSecrets(bad, s.cluster.Keys, s.cluster.ID()); err != nil {
		t.Error(err)
	}
}
