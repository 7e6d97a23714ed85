package measurements

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/pcrs"
)

// testDocument is a small document; changing tag changes PCR 4 only.
func testDocument(t testing.TB, tag string) Document {
	t.Helper()
	return documentWith(t, tag)
}

// documentWith is a small document that predicts further registers.
func documentWith(t testing.TB, tag string, further ...pcrs.Register) Document {
	t.Helper()
	event := func(r pcrs.Register, text string) pcrs.Event {
		return pcrs.Event{
			Register: r, Type: pcrs.EvEFIAction, Digests: pcrs.DigestsOf([]byte(text), pcrs.PredictedBanks()...),
			Source: &pcrs.Source{Kind: pcrs.FromAction, Name: text}, Origin: pcrs.Derived,
		}
	}
	p := pcrs.Prediction{
		Log:         pcrs.Log{Events: []pcrs.Event{event(7, "keys"), event(4, tag), event(9, "command line"), event(11, "sections"), event(9, "initrd")}},
		Registers:   []pcrs.Register{4, 7, 9, 11, 12, 13, 15},
		Unpredicted: []pcrs.Unpredicted{{Register: 0, Reason: "firmware"}, {Register: 8, Reason: "per node"}},
	}
	for _, r := range further {
		p.Log.Events, p.Registers = append(p.Log.Events, event(r, "further")), append(p.Registers, r)
		p.Unpredicted = slices.DeleteFunc(p.Unpredicted, func(u pcrs.Unpredicted) bool { return u.Register == r })
	}
	slices.Sort(p.Registers)
	digest := bytes.Repeat([]byte{7}, 32)
	image := Image{ID: "node", Version: "20260101", Disk: digest, RootHash: digest, UKI: digest, Stub: "257.1"}
	image.Versions = hullmark.Versions{Kubernetes: hullmark.Version{Major: 1, Minor: 36, Patch: 3}, Etcd: hullmark.Version{Major: 3, Minor: 6, Patch: 8}}
	d, err := New(image, Release{SVN: 3, Builder: "example.org/builder@v1.0.0", Lock: digest, SBOM: digest, CycloneDX: digest}, pcrs.Machine{}, p)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func encode(t testing.TB, d Document) []byte {
	t.Helper()
	b, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func id(t testing.TB, d Document) DocumentID {
	t.Helper()
	digest, err := d.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestDocumentReadsBack(t *testing.T) {
	d := testDocument(t, "image")
	encoded := encode(t, d)
	again, err := Parse(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encode(t, again), encoded) || id(t, again) != id(t, d) {
		t.Error("a document changed by being read")
	}
	values, err := again.Prediction().Values(pcrs.SHA384)
	if err != nil {
		t.Fatal(err)
	}
	for r, want := range d.Values(pcrs.SHA384) {
		if !want.Equal(values[r]) {
			t.Errorf("%v: %v, want %v", r, values[r], want)
		}
	}
}

func TestDocumentSatisfiesItsSchema(t *testing.T) {
	schema := compileSchema(t, "../docs/measurement.schema.json")
	var v any
	if err := json.Unmarshal(encode(t, testDocument(t, "image")), &v); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(v); err != nil {
		t.Error(err)
	}
	v.(map[string]any)["more"] = true
	if schema.Validate(v) == nil {
		t.Error("the schema allows an unknown field")
	}
}

func compileSchema(t *testing.T, path string) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	source, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", source); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestParseRefusesEveryFlippedByte(t *testing.T) {
	good := encode(t, testDocument(t, "image"))
	original := id(t, testDocument(t, "image"))
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1
		d, err := Parse(b)
		if err == nil && id(t, d) == original {
			t.Fatalf("byte %d flipped (%q), and the document has the same digest", i, good[max(0, i-10):min(len(good), i+10)])
		}
	}
}

// TestRegistersOfConfidentialMachines: they have one bank, and those that are computed once have one event.
func TestRegistersOfConfidentialMachines(t *testing.T) {
	d := testDocument(t, "image")
	p := d.Prediction()
	add := func(r pcrs.Register, digests pcrs.Digests) {
		source := pcrs.Source{Kind: pcrs.FromLaunch, Name: "the firmware", File: "OVMF.fd"}
		p.Log.Events = append(p.Log.Events, pcrs.Event{Register: r, Type: pcrs.EvLaunch, Digests: digests, Source: &source, Origin: pcrs.Derived})
		if !slices.Contains(p.Registers, r) {
			p.Registers = append(p.Registers, r)
		}
	}
	measured := pcrs.DigestsOf([]byte("measured"), pcrs.SHA384)
	for _, r := range []pcrs.Register{pcrs.RTMR(0), pcrs.RTMR(0), pcrs.RTMR(3), pcrs.MRTD, pcrs.LaunchDigest} {
		add(r, measured)
	}
	p.Registers = append(p.Registers, pcrs.RTMR(1)) // nothing is measured into it
	slices.Sort(p.Registers)
	d, err := New(d.Image, Release{SVN: 2}, pcrs.Machine{}, p)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(encode(t, d))
	if err != nil {
		t.Fatal(err)
	}
	values := again.Values(pcrs.SHA384)
	if !values[pcrs.MRTD].Equal(measured[pcrs.SHA384]) || values[pcrs.RTMR(3)] == nil || values[pcrs.RTMR(3)].Equal(values[pcrs.RTMR(0)]) {
		t.Errorf("got %v", values)
	}
	if other := again.Values(pcrs.SHA256); len(other) != len(values) || !other[pcrs.MRTD].Equal(values[pcrs.MRTD]) || other[4].Equal(values[4]) {
		t.Errorf("beside bank sha256: %v", other)
	}
	policy := testPolicy(id(t, again))
	judge := func(v pcrs.Values) Verdict { return Judge(policy, []Document{again}, pcrs.SHA256, v) }
	same := again.Values(pcrs.SHA256)
	if v := judge(same); !v.Accepted() || !slices.Contains(v.Matched, pcrs.LaunchDigest) {
		t.Errorf("a machine that was launched as published: %v", v)
	}
	for _, r := range []pcrs.Register{pcrs.MRTD, pcrs.LaunchDigest, pcrs.RTMR(3)} {
		other := again.Values(pcrs.SHA256)
		other[r] = pcrs.DigestsOf([]byte("another"), pcrs.SHA384)[pcrs.SHA384]
		if v := judge(other); v.Accepted() {
			t.Errorf("accepted with another %v", r)
		}
		differences, err := pcrs.Explain(again.Prediction(), pcrs.SHA256, other, nil)
		if err != nil || len(differences) != 1 || differences[0].Register != r || differences[0].Bank != pcrs.SHA384 {
			t.Errorf("another %v: %v, %v", r, differences, err)
		}
		delete(other, r)
		if v := judge(other); v.Accepted() {
			t.Errorf("accepted without %v", r)
		}
	}
	for name, spoil := range map[string]func(){
		"a digest twice": func() { add(pcrs.MRTD, measured) },
		"a bank more":    func() { add(pcrs.RTMR(1), pcrs.DigestsOf([]byte("measured"), pcrs.SHA256, pcrs.SHA384)) },
		"another bank":   func() { add(pcrs.RTMR(1), pcrs.DigestsOf([]byte("measured"), pcrs.SHA256)) },
		"a PCR of one":   func() { add(6, measured) },
	} {
		registers, events := slices.Clone(p.Registers), slices.Clone(p.Log.Events)
		spoil()
		slices.Sort(p.Registers)
		if _, err := New(d.Image, Release{SVN: 1}, pcrs.Machine{}, p); err == nil {
			t.Errorf("%s: accepted", name)
		}
		p.Registers, p.Log.Events = registers, events
	}
}

// TestEverySourceInADocument: what a document says of an event is what was said to it.
func TestEverySourceInADocument(t *testing.T) {
	d := testDocument(t, "image")
	full := pcrs.Source{
		Name: "name", Section: ".section", File: "loader/file", Files: []string{"a", "b"}, Number: 1, Count: 2, Bytes: 3, Boot: "a boot",
		Parts: []pcrs.Source{{Kind: pcrs.FromSection, Section: ".cmdline", Bytes: 4}, {Kind: pcrs.FromSMBIOS, Name: "name"}},
	}
	p, schema := d.Prediction(), compileSchema(t, "../docs/measurement.schema.json")
	for _, kind := range pcrs.SourceKinds() {
		source := full
		source.Kind = kind
		p.Log.Events[0].Source = &source
		made, err := New(d.Image, Release{SVN: 1}, pcrs.Machine{}, p)
		if err != nil {
			t.Fatal(err)
		}
		encoded := encode(t, made)
		again, err := Parse(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if got := *again.Prediction().Log.Of(p.Log.Events[0].Register)[0].Source; !reflect.DeepEqual(got, source) {
			t.Errorf("%s: got %+v, want %+v", kind, got, source)
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
		if err == nil {
			err = schema.Validate(v)
		}
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := string(encode(t, testDocument(t, "image")))
	for name, c := range map[string]struct{ document, want string }{
		"empty":         {"", "it is empty"},
		"unknown field": {strings.Replace(good, `"svn"`, `"more": 1, "svn"`, 1), "unknown field"},
		"an old schema": {strings.Replace(good, "/v2", "/v1", 1), "of another release of Hullmark"},
		"an old event":  {strings.Replace(strings.Replace(good, "/v2", "/v1", 1), `"source": {`, `"what": {`, 1), "of another release of Hullmark"},
		"no kind":       {strings.Replace(good, `"kind": "action"`, `"kind": "deed"`, 1), "is unknown"},
		"more of it":    {strings.Replace(good, `"kind": "action"`, `"kind": "action", "more": 1`, 1), "unknown field"},
		"no register":   {strings.Replace(good, `"pcr15"`, `"pcr24"`, 1), "want pcr0 to pcr23"},
		"a number":      {strings.Replace(good, `"pcr15"`, `15`, 1), "number at byte"},
		"spacing":       {strings.Replace(good, "\n", "", 1), "canonical"},
		"twice":         {strings.Replace(good, `"svn": 3`, "\"svn\": 2,\n  \"svn\": 3", 1), "canonical"},
		"trailing":      {good + "{}", "after the end"},
		"order":         {strings.Replace(good, `"register": "pcr4"`, `"register": "pcr14"`, 1), "out of order"},
		"no release":    {strings.Replace(good, `"release": "20260101"`, `"release": ""`, 1), "its name must have"},
		"long builder":  {strings.Replace(good, "example.org", strings.Repeat("x", maxText), 1), "its builder at most"},
		"short sbom":    {strings.Replace(good, `"sbom": "0707`, `"sbom": "07`, 1), "lock, sbom"},
		"short cdx":     {strings.Replace(good, `"cyclonedx": "0707`, `"cyclonedx": "07`, 1), "or cyclonedx"},
		"value":         {flipValue(good), "not what its events produce"},
		"too large":     {strings.Repeat(" ", MaxDocument+1), "at most"},
	} {
		if _, err := Parse([]byte(c.document)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// flipValue changes one digit of the first register's value.
func flipValue(document string) string {
	at := strings.Index(document, `"values"`)
	at += strings.Index(document[at:], `"sha256": "`) + len(`"sha256": "`)
	digit := byte('0')
	if document[at] == digit {
		digit = '1'
	}
	return document[:at] + string(digit) + document[at+1:]
}

// TestReasonIsOneLine refuses a reason that could hide, on a terminal, that a register is open.
func TestReasonIsOneLine(t *testing.T) {
	d := testDocument(t, "image")
	for reason, ok := range map[string]bool{"because of \u201cé\u201d": true, "\x1b[1A\x1b[2K": false, "a\nenforced: 7": false, "\r": false, "\xff": false, "\u202e": false} {
		d.NotPredicted = []NotPredicted{{Register: 14, Reason: reason}}
		if _, err := d.Encode(); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "no printable line") {
			t.Errorf("%q: %v", reason, err)
		}
	}
}

func testPolicy(ids ...DocumentID) Policy {
	p := Policy{
		Version: 4, MinimumSVN: 2,
		Members:   []Member{{EKID: hullmark.EKID{1}, Role: hullmark.ControlPlane, Name: "cp-1"}, {EKID: hullmark.EKID{2}, Role: hullmark.Worker, Name: "w-1"}},
		Rebinds:   []Rebind{{Old: hullmark.EKID{3}, New: hullmark.EKID{1}}},
		Resets:    []Reset{{EKID: hullmark.EKID{2}, OldUUID: hullmark.UUID{9}}},
		Overrides: []Override{{Serial: 1, EKID: hullmark.EKID{2}, UUID: hullmark.UUID{9}, Epoch: 7}},
	}
	for _, id := range ids {
		p.Documents = append(p.Documents, Accepted{Document: id})
	}
	return p
}

func newRoot(t testing.TB) (*ecdsa.PrivateKey, hullmark.ClusterRoot) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return key, hullmark.ClusterRootOf(spki)
}

func TestPolicySignedByTheRoot(t *testing.T) {
	key, root := newRoot(t)
	signed, err := SignPolicy(key, root, testPolicy(DocumentID{5}))
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenPolicy(signed, root)
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := p.Member(hullmark.EKID{2}); !ok || m.Name != "w-1" || p.Version != 4 {
		t.Errorf("read back %+v", p)
	}
	if _, ok := p.Member(hullmark.EKID{3}); ok {
		t.Error("a stranger is a member")
	}
	_, other := newRoot(t)
	if _, err := OpenPolicy(signed, other); err == nil {
		t.Error("opened for another cluster")
	}
	if _, err := SignPolicy(key, other, p); err == nil {
		t.Error("signed for a cluster whose root key this is not")
	}
}

func TestSignPolicyRefusesOtherKeys(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := SignPolicy(key, hullmark.ClusterRoot{}, testPolicy()); err == nil {
		t.Error("signed with RSA")
	}
}

func TestOpenPolicyRefusesChanges(t *testing.T) {
	key, root := newRoot(t)
	signed, err := SignPolicy(key, root, testPolicy(DocumentID{5}))
	if err != nil {
		t.Fatal(err)
	}
	var s hullmark.Signed
	if err := json.Unmarshal(signed, &s); err != nil {
		t.Fatal(err)
	}
	for i := range s.Policy {
		changed := s
		changed.Policy = bytes.Clone(s.Policy)
		changed.Policy[i] ^= 1
		encoded, err := hullmark.CanonicalJSON(changed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenPolicy(encoded, root); err == nil {
			t.Fatalf("byte %d of the policy flipped and it opened", i)
		}
	}
}

// withCrossCertificates adds so many certificates of a length.
func withCrossCertificates(n, length int) func(*Policy) {
	return func(p *Policy) {
		p.FirstRoot = hullmark.ClusterRoot{1}
		for range n {
			p.CrossCertificates = append(p.CrossCertificates, make([]byte, length))
		}
	}
}

// A policy keeps its cross-certificates and its first root, and names its signer.
func TestPolicyWithCrossCertificates(t *testing.T) {
	key, root := newRoot(t)
	p := testPolicy()
	if p.First(root) != root {
		t.Error("the first root is not the only one")
	}
	withCrossCertificates(2*hullmark.MaxCrossCertificates, maxCrossCertificate)(&p)
	signed, err := SignPolicy(key, root, p)
	if err != nil {
		t.Fatal(err)
	}
	if signer, err := PolicySigner(signed); err != nil || signer != root {
		t.Errorf("signed by %s: %v", signer, err)
	}
	got, err := OpenPolicy(signed, root)
	if err != nil || len(got.CrossCertificates) != len(p.CrossCertificates) || got.First(root) != p.FirstRoot {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := PolicySigner([]byte("{}{}")); err == nil {
		t.Error("the signer of nothing")
	}
}

func TestPolicyRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Policy)
		want   string
	}{
		"version":                  {func(p *Policy) { p.Version = 0 }, "version"},
		"register":                 {func(p *Policy) { p.Documents[0].Enforce = []pcrs.Register{8} }, "not for a policy to enforce"},
		"order":                    {func(p *Policy) { p.Documents[0].Enforce = []pcrs.Register{5, 1} }, "out of order"},
		"document":                 {func(p *Policy) { p.Documents = append(p.Documents, p.Documents[0]) }, "twice"},
		"same ekid":                {func(p *Policy) { p.Members[1].EKID = p.Members[0].EKID }, "rule already"},
		"same name":                {func(p *Policy) { p.Members[1].Name = p.Members[0].Name }, "rule already"},
		"role":                     {func(p *Policy) { p.Members[0].Role = "admin" }, "role"},
		"name":                     {func(p *Policy) { p.Members[0].Name = "Node 1" }, "name"},
		"rebind":                   {func(p *Policy) { p.Rebinds[0].New = p.Rebinds[0].Old }, "itself"},
		"serial":                   {func(p *Policy) { p.Overrides = append(p.Overrides, p.Overrides[0]) }, "serial"},
		"name empty":               {func(p *Policy) { p.Members[0].Name = "" }, "name"},
		"endpoint":                 {func(p *Policy) { p.Endpoint = &Endpoint{Address: "a"} }, "endpoint"},
		"its case":                 {func(p *Policy) { p.Endpoint = &Endpoint{Address: "A.example.net:1"} }, "lower case"},
		"its names":                {func(p *Policy) { p.Endpoint = &Endpoint{Address: "a:1", Names: []string{"b", "b"}} }, "each once"},
		"one name":                 {func(p *Policy) { p.Endpoint = &Endpoint{Address: "a:1", Names: []string{"192.0.2"}} }, "DNS name"},
		"no pool":                  {func(p *Policy) { p.Members[0].Pool = "a" }, "no pool"},
		"pool twice":               {func(p *Policy) { p.Pools = []Pool{{Name: "a", Join: "j"}, {Name: "a", Join: "j"}} }, "each once"},
		"pool name":                {func(p *Policy) { p.Pools = []Pool{{Name: "a b", Join: "j"}} }, "DNS label"},
		"empty pool":               {func(p *Policy) { p.Pools = []Pool{{Name: "a"}} }, "nothing"},
		"long join":                {func(p *Policy) { p.Pools = []Pool{{Name: "a", Join: strings.Repeat("j", maxJoin+1)}} }, "at most"},
		"hook":                     {func(p *Policy) { p.Pools = []Pool{{Name: "a", Hooks: []string{"../a.service"}}} }, "service"},
		"a hook's instance":        {func(p *Policy) { p.Pools = []Pool{{Name: "a", Hooks: []string{"a@b.service"}}} }, "service"},
		"path outside":             {withFile(PlacedFile{Path: "/etc/passwd", Mode: "0644"}), "clean path"},
		"path climbs":              {withFile(PlacedFile{Path: "/etc/kubernetes/../passwd", Mode: "0644"}), "clean path"},
		"path of a folder":         {withFile(PlacedFile{Path: "/etc/kubernetes/", Mode: "0644"}), "clean path"},
		"a key":                    {withFile(PlacedFile{Path: "/etc/kubernetes/pki/ca.key", Mode: "0644"}), "writes"},
		"a renewal":                {withFile(PlacedFile{Path: "/etc/kubernetes/renew.yaml", Mode: "0644"}), "writes"},
		"a folder's place":         {withFile(PlacedFile{Path: "/etc/kubernetes/a", Mode: "0644"}, PlacedFile{Path: "/etc/kubernetes/a/b", Mode: "0644"}), "in its place"},
		"our hook":                 {func(p *Policy) { p.Pools = []Pool{{Name: "a", Hooks: []string{"hullmark-state.service"}}} }, "starts it itself"},
		"half a cross-certificate": {withCrossCertificates(1, 1), "two for each"},
		"more cross-certificates":  {withCrossCertificates(2*hullmark.MaxCrossCertificates+2, 1), "at most 2"},
		"long cross-certificate":   {withCrossCertificates(2, maxCrossCertificate+1), "bytes"},
		"empty cross-certificate":  {withCrossCertificates(2, 0), "bytes"},
		"no first root":            {func(p *Policy) { withCrossCertificates(2, 1)(p); p.FirstRoot = hullmark.ClusterRoot{} }, "firstRoot"},
		"ipv6":                     {func(p *Policy) { p.Endpoint = &Endpoint{Address: "[2001:DB8::7]:1"} }, "lower case"},
		"in ipv6":                  {func(p *Policy) { p.Endpoint = &Endpoint{Address: "a:1", Names: []string{"::ffff:192.0.2.7"}} }, "DNS name"},
		"set-uid":                  {withFile(PlacedFile{Path: "/etc/kubernetes/a", Mode: "4755"}), "octal"},
		"large file":               {withFile(PlacedFile{Path: "/etc/kubernetes/a", Mode: "0644", Content: strings.Repeat("c", maxContent+1)}), "at most"},
		"file twice":               {withFile(PlacedFile{Path: "/etc/kubernetes/a", Mode: "0644"}, PlacedFile{Path: "/etc/kubernetes/a", Mode: "0600"}), "in its place"},
	} {
		p := testPolicy(DocumentID{5})
		c.change(&p)
		if _, err := p.Encode(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// withFile gives a policy a pool with files.
func withFile(files ...PlacedFile) func(*Policy) {
	return func(p *Policy) { p.Pools = []Pool{{Name: "a", Files: files}} }
}

func TestPolicyKeepsPoolsAndEndpoint(t *testing.T) {
	p := testPolicy(DocumentID{5})
	p.Pools = []Pool{{
		Name: "storage", Join: "kind: JoinConfiguration\n", Hooks: []string{"site-metrics.service"},
		Files: []PlacedFile{{Path: "/etc/kubernetes/storage/topology.yaml", Mode: "0600", Content: "rack: 7\n"}},
	}}
	p.Members[0].Pool = "storage"
	p.Endpoint = &Endpoint{Address: "[2001:db8::7]:6443", Names: []string{"*.example.net"}}
	encoded, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParsePolicy(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if pool := got.Pool(got.Members[0]); !reflect.DeepEqual(pool, p.Pools[0]) || !reflect.DeepEqual(got.Endpoint, p.Endpoint) {
		t.Errorf("read back %+v, %+v", pool, got.Endpoint)
	}
	if pool := got.Pool(got.Members[1]); !reflect.DeepEqual(pool, Pool{}) {
		t.Errorf("a member without a pool is in %+v", pool)
	}
	without := testPolicy(DocumentID{5})
	if encoded, err = without.Encode(); err != nil || strings.Contains(string(encoded), "pool") || strings.Contains(string(encoded), "endpoint") {
		t.Errorf("a policy without them says %s, %v", encoded, err)
	}
}

func TestZeroVerdictDenies(t *testing.T) {
	var v Verdict
	if v.Accepted() {
		t.Error("the zero verdict accepts")
	}
	if v := Judge(Policy{}, nil, pcrs.SHA256, nil); v.Accepted() || len(v.Reasons) == 0 {
		t.Errorf("nothing to compare with: %v", v)
	}
}

func TestJudge(t *testing.T) {
	good, other := testDocument(t, "image"), testDocument(t, "another image")
	policy := testPolicy(id(t, good), id(t, other))
	measured := good.Values(pcrs.SHA256)
	for name, c := range map[string]struct {
		change    func(*Policy, pcrs.Values)
		documents []Document
		want      string // empty: accepted
	}{
		"equal":               {nil, []Document{other, good}, ""},
		"not accepted":        {func(p *Policy, _ pcrs.Values) { p.Documents = p.Documents[1:] }, []Document{good}, "does not accept"},
		"other image":         {nil, []Document{other}, "PCR 4: want"},
		"command line":        {func(_ *Policy, v pcrs.Values) { v[9] = v[11] }, []Document{good}, "PCR 9: want"},
		"addon":               {func(_ *Policy, v pcrs.Values) { v[12] = v[11] }, []Document{good}, "PCR 12: want"},
		"sysext":              {func(_ *Policy, v pcrs.Values) { v[13] = v[11] }, []Document{good}, "PCR 13: want"},
		"not measured":        {func(_ *Policy, v pcrs.Values) { delete(v, 11) }, []Document{good}, "PCR 11: want"},
		"firmware's keys":     {func(_ *Policy, v pcrs.Values) { v[7] = v[11] }, []Document{good}, "PCR 7: want"},
		"dropped by policy":   {func(p *Policy, v pcrs.Values) { p.Documents[0].Enforce = nil; v[7] = v[11] }, []Document{good}, "PCR 7: want"},
		"not predicted":       {func(_ *Policy, v pcrs.Values) { v[0] = v[11] }, []Document{good}, ""},
		"enforced, not known": {func(p *Policy, _ pcrs.Values) { p.Documents[0].Enforce = []pcrs.Register{5} }, []Document{good}, "does not predict"},
		"old":                 {func(p *Policy, _ pcrs.Values) { p.MinimumSVN = 4 }, []Document{good}, "security version"},
		"15 is not judged":    {func(_ *Policy, v pcrs.Values) { v[15] = v[11] }, []Document{good}, ""},
	} {
		p, v := policy.normalised(), pcrs.Values{}
		for r, value := range measured {
			v[r] = slices.Clone(value)
		}
		if c.change != nil {
			c.change(&p, v)
		}
		verdict := Judge(p, c.documents, pcrs.SHA256, v)
		if verdict.Accepted() != (c.want == "") || !strings.Contains(verdict.String(), c.want) {
			t.Errorf("%s: %v", name, verdict)
		}
	}
}

// What a document predicts of firmware and its keys has to match by whatever policy, and none can be signed that says
// otherwise; PCR 1 and 5 are the policy's.
func TestNoPolicyDropsRequiredRegisters(t *testing.T) {
	all := []pcrs.Register{0, 1, 2, 3, 5, 6, 14}
	d := documentWith(t, "image", all...)
	for _, r := range append(all, required...) {
		optional := slices.Contains(enforceable, r)
		values := d.Values(pcrs.SHA256)
		values[r] = make(pcrs.Digest, 32)
		if r == 12 || r == 13 { // they are zero in the document
			values[r][0] = 1
		}
		policy := testPolicy(id(t, d))
		if v := Judge(policy, []Document{d}, pcrs.SHA256, values); v.Accepted() != optional {
			t.Errorf("%v differs, and no policy says anything of it: %v", r, v)
		}
		policy.Documents[0].Enforce = []pcrs.Register{r}
		if _, err := policy.Encode(); (err == nil) != optional {
			t.Errorf("a policy that chooses %v: %v", r, err)
		}
		if v := Judge(policy, []Document{d}, pcrs.SHA256, values); v.Accepted() {
			t.Errorf("%v differs, and is enforced: %v", r, v)
		}
		if v := Judge(policy, []Document{d}, pcrs.SHA256, d.Values(pcrs.SHA256)); !v.Accepted() {
			t.Errorf("%v is what it is to be: %v", r, v)
		}
	}
}

// TestJudgeMixesNoDocuments gives half of the registers of each of two accepted documents.
func TestJudgeMixesNoDocuments(t *testing.T) {
	a, b := testDocument(t, "image"), testDocument(t, "another image")
	values := a.Values(pcrs.SHA256)
	values[4] = b.Values(pcrs.SHA256)[4]
	values[9] = make(pcrs.Digest, 32)
	if v := Judge(testPolicy(id(t, a), id(t, b)), []Document{a, b}, pcrs.SHA256, values); v.Accepted() || len(v.Reasons) != 3 {
		t.Errorf("got %v", v)
	}
}

func TestJudgeRefusesWeakBanks(t *testing.T) {
	d := testDocument(t, "image")
	if v := Judge(testPolicy(id(t, d)), []Document{d}, pcrs.SHA1, pcrs.Values{}); v.Accepted() || !strings.Contains(v.String(), "decide nothing") {
		t.Errorf("got %v", v)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(encode(f, testDocument(f, "image")))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse(b)
		if err != nil {
			return
		}
		if !bytes.Equal(encode(t, d), b) {
			t.Error("two spellings of one document")
		}
	})
}

// A person may write a policy's fields in any order and with any space, and nothing else than what it has.
func TestParseEditedPolicy(t *testing.T) {
	want, err := testPolicy(DocumentID{5}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	var loose map[string]any
	if err := json.Unmarshal(want, &loose); err != nil {
		t.Fatal(err)
	}
	edited, err := json.Marshal(loose)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParsePolicy(edited); err == nil {
		t.Error("what was reformatted passes for what was signed")
	}
	p, err := ParseEditedPolicy(edited)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Encode(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("it is read as another policy: %v\n%s", err, got)
	}
	loose["mercy"] = true
	if edited, err = json.Marshal(loose); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseEditedPolicy(edited); err == nil {
		t.Error("an unknown field is passed over")
	}
}

func FuzzOpenPolicy(f *testing.F) {
	key, root := newRoot(f)
	signed, err := SignPolicy(key, root, testPolicy(DocumentID{5}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	encoded, err := testPolicy(DocumentID{5}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = OpenPolicy(b, root)
		p, err := ParsePolicy(b)
		if err != nil {
			return
		}
		again, err := p.Encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("two spellings of one policy: %v", err)
		}
	})
}
