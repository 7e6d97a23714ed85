package joinservice_test

import (
	"errors"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

const (
	tpmOnly   = hullmark.TrustTPM
	paravisor = hullmark.TrustParavisor
	whole     = hullmark.TrustConfidential
)

// of are claims whose evidence is of that class.
func of(class hullmark.TrustClass, c attest.Claims) attest.Claims {
	c.Platform = hullmark.PlatformClaims{Trust: class, Platform: "made-up"}
	return c
}

// demanding is an authorizer whose policy demands a class of control planes, and another one of the release.
func demanding(t *testing.T, role, release hullmark.TrustClass) *joinservice.Authorizer {
	t.Helper()
	a := newAuthorizer(t)
	a.Policy.Trust.ControlPlane = role
	a.Policy.Documents[0].Trust = release
	if _, err := a.Policy.Encode(); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestLeastTrust gives every class a ticket that reaches what is demanded, and no other, for a new disk, for one that comes back,
// and for one that is recovered.
func TestLeastTrust(t *testing.T) {
	all := []hullmark.TrustClass{tpmOnly, hullmark.TrustProvider, paravisor, whole, hullmark.TrustTestParavisor, hullmark.TrustTestConfidential}
	for _, least := range all {
		for _, a := range []*joinservice.Authorizer{demanding(t, least, ""), demanding(t, "", least), demanding(t, tpmOnly, least)} {
			for _, class := range all {
				fits := class.AtLeast(least)
				_, err := a.Admit(hullmark.Init, of(class, claims(t, "image", blank())), nil)
				wantTrust(t, "a new disk", err, fits, "trust-too-low")
				record := &joinservice.Record{Disk: disk, Committed: 1, Issued: 1, Trust: class}
				_, err = a.Admit(hullmark.Rejoin, of(class, claims(t, "image", ready())), record)
				wantTrust(t, "a disk that comes back", err, fits, "trust-too-low")
				_, err = a.Recover(hullmark.Recover, of(class, claims(t, "image", ready())))
				wantTrust(t, "a disk that is recovered", err, fits, "trust-too-low")
			}
		}
	}
}

func wantTrust(t *testing.T, what string, err error, fits bool, code string) {
	t.Helper()
	var c *hullmark.Condition
	if fits == (err == nil) && (fits || errors.As(err, &c) && c.Code == code) {
		return
	}
	t.Errorf("%s: fits %t, %v", what, fits, err)
}

// TestTrustIsNotLowered holds a disk to the class with which it was made, whatever the policy demands.
func TestTrustIsNotLowered(t *testing.T) {
	a := newAuthorizer(t)
	first, err := a.Admit(hullmark.Init, of(paravisor, claims(t, "image", blank())), nil)
	if err != nil || first.Record.Trust != paravisor {
		t.Fatalf("%+v, %v", first.Record, err)
	}
	for class, fits := range map[hullmark.TrustClass]bool{
		tpmOnly: false, hullmark.TrustProvider: false, hullmark.TrustTestConfidential: false, paravisor: true, whole: true,
	} {
		again, err := a.Admit(hullmark.Rejoin, of(class, claims(t, "image", ready())), &first.Record)
		wantTrust(t, string(class), err, fits, "trust-lowered")
		if fits && again.Record.Trust != paravisor {
			t.Errorf("%s: the disk is of class %s by now", class, again.Record.Trust)
		}
	}
	// An empty disk under another name is another key's.
	other := blank()
	other.UUID[0]++
	a.Waiver.NewDisk = true
	next, err := a.Admit(hullmark.Init, of(tpmOnly, claims(t, "image", other)), &first.Record)
	if err != nil || next.Record.Trust != "" {
		t.Errorf("an empty disk: %+v, %v", next.Record, err)
	}
}

// TestTrustIsNotRaisedOnADisk refuses the disks of a time when less was demanded: a lesser machine had their keys.
func TestTrustIsNotRaisedOnADisk(t *testing.T) {
	a := demanding(t, whole, "")
	for _, was := range []hullmark.TrustClass{"", tpmOnly, paravisor} {
		for _, claim := range []hullmark.DiskClaim{ready(), {State: hullmark.DiskFormatting, UUID: disk}} {
			_, err := a.Admit(hullmark.Rejoin, of(whole, claims(t, "image", claim)), &joinservice.Record{Disk: disk, Issued: 1, Trust: was})
			wantTrust(t, claim.State.String()+", made by "+string(was), err, false, "disk-trust-too-low")
		}
	}
	_, err := a.Admit(hullmark.Rejoin, of(whole, claims(t, "image", ready())), &joinservice.Record{Disk: disk, Issued: 1, Trust: whole})
	wantTrust(t, "the positive control", err, true, "")

	// An override vouches for a disk as it is, and takes no class from it.
	a.Policy.Overrides = []measurements.Override{{Serial: 1, EKID: machine, UUID: disk, Epoch: 3}}
	_, err = a.Admit(hullmark.Rejoin, of(whole, claims(t, "image", ready())), &joinservice.Record{Disk: disk, Issued: 1, Trust: paravisor})
	wantTrust(t, "an override of a disk of a lesser class", err, false, "disk-trust-too-low")
}

// TestTrustTakesNewKeys refuses the keys of a time when less was demanded, for disks of that time and for new ones.
func TestTrustTakesNewKeys(t *testing.T) {
	a := demanding(t, whole, "")
	record := &joinservice.Record{Disk: disk, Committed: 1, Issued: 1, Trust: whole}
	a.Policy.Trust.Generation = a.Keys.Current() + 1
	_, err := a.Admit(hullmark.Rejoin, of(whole, claims(t, "image", ready())), record)
	wantTrust(t, "a disk", err, false, "disk-trust-too-low")
	_, err = a.Admit(hullmark.Join, of(whole, claims(t, "image", blank())), nil)
	wantTrust(t, "a new disk", err, false, "trust-keys-old")
	a.Policy.Trust.Generation--
	_, err = a.Admit(hullmark.Rejoin, of(whole, claims(t, "image", ready())), record)
	wantTrust(t, "the positive control", err, true, "")
}

// TestTrustOfPolicies refuses what cannot hold.
func TestTrustOfPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		trust measurements.LeastTrust
		fits  bool
	}{
		"workers above control planes": {measurements.LeastTrust{ControlPlane: paravisor, Worker: whole}, false},
		"workers alone":                {measurements.LeastTrust{Worker: paravisor}, false},
		"a class of tests above":       {measurements.LeastTrust{ControlPlane: hullmark.TrustTestConfidential, Worker: paravisor}, false},
		"an unknown class":             {measurements.LeastTrust{ControlPlane: "CVM"}, false},
		"a generation of nothing":      {measurements.LeastTrust{Generation: 2}, false},
		"both alike":                   {measurements.LeastTrust{ControlPlane: whole, Worker: whole, Generation: 2}, true},
		"workers below":                {measurements.LeastTrust{ControlPlane: whole, Worker: paravisor}, true},
		"workers of any class":         {measurements.LeastTrust{ControlPlane: whole}, true},
		"workers of tpm":               {measurements.LeastTrust{Worker: tpmOnly}, true},
	} {
		policy := newAuthorizer(t).Policy
		policy.Trust = c.trust
		encoded, err := policy.Encode()
		if c.fits != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if again, err := measurements.ParsePolicy(encoded); err != nil || again.Trust != c.trust {
				t.Errorf("%s: read again: %+v, %v", name, again.Trust, err)
			}
		}
	}
}
