package prover_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// templates are the templates of endorsement keys by their names.
func templates() map[string]attest.EKTemplate {
	named := map[string]attest.EKTemplate{}
	for _, t := range attest.EKTemplates() {
		named[t.Name] = t
	}
	return named
}

// only leaves a TPM the indexes of these templates' certificates, with no certificate in them.
func only(t *testing.T, tpm *tpmtest.TPM, names ...string) {
	t.Helper()
	for _, template := range attest.EKTemplates() {
		tpm.Store(t, template.Certificate, nil)
	}
	for _, name := range names {
		tpm.Store(t, templates()[name].Certificate, []byte("no certificate"))
	}
}

// The keys that swtpm makes for its manufacturer are of our templates, one of each range.
func TestEndorsementKeys(t *testing.T) {
	tpm := tpmtest.NewCertified(t)
	keys, err := prover.EKs(tpm)
	if err != nil || len(keys) != 2 || keys[0].Template.Name != "rsa-2048" || keys[1].Template.Name != "ecc-p384-high" {
		t.Fatalf("%+v, %v", keys, err)
	}
	for _, key := range keys {
		found, err := tpm2.ReadPublic{ObjectHandle: key.Template.Handle}.Execute(tpm)
		if err != nil || !bytes.Equal(found.OutPublic.Bytes(), key.Public) {
			t.Errorf("%s: the persistent key is another: %v", key.Template.Name, err)
		}
		if len(key.Certificate) == 0 || key.Wrong != nil {
			t.Errorf("%s: certificate of %d bytes, %v", key.Template.Name, len(key.Certificate), key.Wrong)
		}
		made, err := tpm2.CreatePrimary{
			PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)}, InPublic: tpm2.New2B(key.Template.Public()),
		}.Execute(tpm)
		if err != nil || !bytes.Equal(made.OutPublic.Bytes(), key.Public) {
			t.Errorf("%s: our template makes another key: %v", key.Template.Name, err)
		}
		if err == nil {
			_, _ = tpm2.FlushContext{FlushHandle: made.ObjectHandle}.Execute(tpm)
		}
	}
}

// A machine shows the first key that is certified, at each boot, and the one that owns its disk before all others.
func TestWhichEndorsementKey(t *testing.T) {
	tpm := tpmtest.NewCertified(t) // An emulator takes long for an RSA key: this one has it.
	ids := map[string]hullmark.EKID{}
	for _, name := range []string{"rsa-2048", "ecc-p256", "ecc-p256-high", "ecc-p384-high"} {
		only(t, tpm, name)
		ids[name] = show(t, tpm, hullmark.EKID{})
	}
	none := hullmark.EKID{}
	for name, c := range map[string]struct {
		certified []string
		owner     hullmark.EKID
		want      string
	}{
		"no certificate":                         {nil, none, "rsa-2048"},
		"both":                                   {[]string{"ecc-p256", "rsa-2048"}, none, "rsa-2048"},
		"ECC alone":                              {[]string{"ecc-p256"}, none, "ecc-p256"},
		"low before high":                        {[]string{"ecc-p256-high", "ecc-p256"}, none, "ecc-p256"},
		"high":                                   {[]string{"ecc-p384-high", "ecc-p256-high"}, none, "ecc-p256-high"},
		"the disk is another's":                  {[]string{"ecc-p256"}, hullmark.EKID{1}, "ecc-p256"},
		"the disk is the other key's":            {[]string{"ecc-p256", "rsa-2048"}, ids["ecc-p256"], "ecc-p256"},
		"the disk is older than the certificate": {[]string{"ecc-p384-high"}, ids["rsa-2048"], "rsa-2048"},
		"the disk is of a key without one":       {[]string{"rsa-2048"}, ids["ecc-p256"], "rsa-2048"},
	} {
		only(t, tpm, c.certified...)
		if got := show(t, tpm, c.owner); got != ids[c.want] {
			t.Errorf("%s: the machine shows %v, want its key %s", name, got, c.want)
		}
	}
}

// show returns the identity that a machine shows whose disk is owner's, and sees that nothing is left in the TPM's memory.
func show(t *testing.T, tpm *tpmtest.TPM, owner hullmark.EKID) hullmark.EKID {
	t.Helper()
	p, err := prover.Open(tpm, owner)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := tpm2.GetCapability{Capability: tpm2.TPMCapHandles, Property: uint32(tpm2.TPMHTTransient) << 24, PropertyCount: 8}.Execute(tpm)
	if err != nil {
		t.Fatal(err)
	}
	if handles, err := left.CapabilityData.Data.Handles(); err != nil || len(handles.Handle) > 0 {
		t.Errorf("keys are left in the TPM: %v, %v", handles, err)
	}
	return p.Node()
}

// What a TPM holds in the place of a certificate costs the machine its certificate, and nothing else.
func TestDamagedIndexes(t *testing.T) {
	tpm := tpmtest.NewCertified(t)
	keys, err := prover.EKs(tpm)
	if err != nil {
		t.Fatal(err)
	}
	real := keys[0].Certificate
	rsa := templates()["rsa-2048"].Certificate
	padded := append(bytes.Clone(real), bytes.Repeat([]byte{0xff}, 100)...)
	for name, c := range map[string]struct {
		index, chain []byte
		want         int
		wrong        string
	}{
		"a certificate":          {real, nil, len(real), ""},
		"padding behind it":      {padded, nil, len(real), ""},
		"zeros":                  {make([]byte, 700), nil, 0, "no certificate"},
		"cut off":                {real[:len(real)-1], nil, 0, "truncated"},
		"a chain":                {real, padded, 2 * len(real), ""},
		"a chain that is torn":   {real, real[:len(real)-1], len(real), "truncated"},
		"a chain that is large":  {real, append([]byte{0x30, 0x82, 7, 250}, make([]byte, 2042)...), len(real), "at most"},
		"a chain that has words": {real, append(bytes.Clone(real), "words"...), len(real), "CAs"},
	} {
		tpm.Store(t, rsa, c.index)
		for i := range tpm2.TPMHandle(4) {
			tpm.Store(t, 0x01c00100+i, nil)
			if c.wrong == "at most" || i == 0 && c.chain != nil {
				tpm.Store(t, 0x01c00100+i, c.chain)
			}
		}
		p := open(t, tpm)
		identity := p.Identity()
		if len(identity.EKCertificate) != c.want || (identity.EKWrong == nil) != (c.wrong == "") || c.wrong != "" && !strings.Contains(identity.EKWrong.Error(), c.wrong) {
			t.Errorf("%s: %d bytes are shown, want %d; %v", name, len(identity.EKCertificate), c.want, identity.EKWrong)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
