package measurements

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

func newEnroller(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func testVoucher() Voucher {
	return Voucher{
		Schema: VoucherSchema, ClusterRoot: hullmark.ClusterRoot{1}, Group: "cloud", EKID: hullmark.EKID{2}, Name: "cloud-7",
		ProviderID: "aws:///eu-west-1a/i-0123456789abcdef0", NotAfter: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC),
	}
}

func anybody(ed25519.PublicKey) bool { return true }

func TestVoucherKeepsItsForm(t *testing.T) {
	public, private := newEnroller(t)
	signed, err := SignVoucher(private, testVoucher())
	if err != nil {
		t.Fatal(err)
	}
	got, by, err := OpenVoucher(signed, func(by ed25519.PublicKey) bool { return public.Equal(by) })
	if err != nil || !reflect.DeepEqual(got, testVoucher()) || !public.Equal(by) {
		t.Errorf("%+v by %x, %v", got, by, err)
	}
	if got, by, err = ReadVoucher(signed); err != nil || !reflect.DeepEqual(got, testVoucher()) || !public.Equal(by) {
		t.Errorf("read: %+v by %x, %v", got, by, err)
	}
	want := Member{EKID: hullmark.EKID{2}, Role: hullmark.Worker, Name: "cloud-7", Pool: "a", ProviderID: got.ProviderID}
	if m := got.Member(Group{Name: "cloud", Pool: "a"}); m != want {
		t.Errorf("its rule is %+v, want %+v", m, want)
	}
	if len(signed) > MaxVoucher/2 {
		t.Errorf("a voucher of %d bytes leaves no room for a long provider ID", len(signed))
	}
	long := testVoucher()
	long.ProviderID = "aws:///" + strings.Repeat("a", hullmark.MaxProviderID-len("aws:///"))
	long.Group = strings.Repeat("g", maxGroupName)
	long.Name = long.Group + "-" + strings.Repeat("a", 63-1-maxGroupName)
	if signed, err = SignVoucher(private, long); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenVoucher(signed, anybody); err != nil {
		t.Errorf("the longest voucher, of %d bytes: %v", len(signed), err)
	}
}

func TestVouchersAreChecked(t *testing.T) {
	_, private := newEnroller(t)
	for name, c := range map[string]struct {
		change func(*Voucher)
		says   string
	}{
		"no cluster":         {func(v *Voucher) { v.ClusterRoot = hullmark.ClusterRoot{} }, "names no cluster"},
		"no machine":         {func(v *Voucher) { v.EKID = hullmark.EKID{} }, "or no machine"},
		"no group":           {func(v *Voucher) { v.Group, v.Name = "", "-7" }, "group"},
		"a group's length":   {func(v *Voucher) { v.Group = strings.Repeat("a", maxGroupName+1); v.Name = v.Group + "-1" }, "at most 46"},
		"another's name":     {func(v *Voucher) { v.Name = "other-7" }, "begins with cloud-"},
		"the group's name":   {func(v *Voucher) { v.Name = "cloud" }, "begins with cloud-"},
		"nothing after it":   {func(v *Voucher) { v.Name = "cloud-" }, "begins with cloud-"},
		"no DNS label":       {func(v *Voucher) { v.Name = "cloud-a.b" }, "begins with cloud-"},
		"no scheme":          {func(v *Voucher) { v.ProviderID = "i-1" }, "provider ID"},
		"a space":            {func(v *Voucher) { v.ProviderID = "aws:///a b" }, "provider ID"},
		"a quote":            {func(v *Voucher) { v.ProviderID = `aws:///a"` }, "provider ID"},
		"a line":             {func(v *Voucher) { v.ProviderID = "aws:///a\n" }, "provider ID"},
		"a long provider ID": {func(v *Voucher) { v.ProviderID = "aws:///" + strings.Repeat("a", hullmark.MaxProviderID) }, "provider ID"},
		"no time":            {func(v *Voucher) { v.NotAfter = time.Time{} }, "notAfter"},
		"parts of a second":  {func(v *Voucher) { v.NotAfter = v.NotAfter.Add(1) }, "notAfter"},
		"another zone":       {func(v *Voucher) { v.NotAfter = v.NotAfter.In(time.FixedZone("x", 3600)) }, "notAfter"},
		"no provider ID":     {func(v *Voucher) { v.ProviderID = "" }, ""},
		"as it was":          {func(*Voucher) {}, ""},
	} {
		v := testVoucher()
		c.change(&v)
		_, err := SignVoucher(private, v)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := SignVoucher(other, testVoucher()); err == nil || !strings.Contains(err.Error(), "want Ed25519") {
		t.Errorf("another kind of key: %v", err)
	}
}

// What is signed is the cluster, the kind and every byte, and there is one spelling of it.
func TestVoucherIsNotChanged(t *testing.T) {
	public, private := newEnroller(t)
	signed, err := SignVoucher(private, testVoucher())
	if err != nil {
		t.Fatal(err)
	}
	var whole signedVoucher
	if err := json.Unmarshal(signed, &whole); err != nil {
		t.Fatal(err)
	}
	resign := func(kind string, root hullmark.ClusterRoot, document []byte) []byte {
		encoded, err := hullmark.CanonicalJSON(signedVoucher{document, public, ed25519.Sign(private, hullmark.SigningInput(kind, root, document))})
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	edit := func(from, to string) []byte {
		changed := bytes.Replace(whole.Voucher, []byte(from), []byte(to), 1)
		if bytes.Equal(changed, whole.Voucher) {
			t.Fatalf("nothing to change: %s", from)
		}
		return changed
	}
	with := func(document []byte) []byte {
		encoded, err := hullmark.CanonicalJSON(signedVoucher{document, whole.Enroller, whole.Signature})
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	root := testVoucher().ClusterRoot
	for name, c := range map[string]struct {
		signed []byte
		says   string
	}{
		"another name":              {with(edit("cloud-7", "cloud-8")), "was changed"},
		"another cluster":           {with(edit(root.String(), hullmark.ClusterRoot{9}.String())), "was changed"},
		"another cluster's signing": {resign("voucher", hullmark.ClusterRoot{9}, whole.Voucher), "was changed"},
		"another kind":              {resign(hullmark.PolicyKind, root, whole.Voucher), "was changed"},
		"a field more":              {resign("voucher", root, edit("{", `{"role": "control-plane",`)), "unknown field"},
		"another spelling":          {resign("voucher", root, edit(" ", "  ")), "canonical"},
		"another schema":            {resign("voucher", root, edit("voucher/v1", "voucher/v2")), "schema"},
		"a longer envelope":         {append(bytes.Clone(signed), bytes.Repeat([]byte(" "), MaxVoucher)...), "at most 4096"},
		"space in the envelope":     {append(bytes.Clone(signed), ' '), "canonical"},
		"two of them":               {append(bytes.Clone(signed), signed...), "data after the end"},
		"nothing":                   {nil, "empty"},
		"no key":                    {[]byte(`{"voucher":"","enroller":"","signature":""}`), "a key of 0"},
		"as it was signed":          {resign("voucher", root, whole.Voucher), ""},
	} {
		_, _, err := OpenVoucher(c.signed, anybody)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := OpenVoucher(signed, func(ed25519.PublicKey) bool { return false }); !errors.Is(err, ErrEnroller) || !strings.Contains(err.Error(), fmt.Sprintf("%x", public)) {
		t.Errorf("a key that nobody trusts: %v", err)
	}
}

func enrolled(keys ...[]byte) Group { return Group{Name: "cloud", Enrollers: keys, Max: 3} }

func TestEnrollersAreChecked(t *testing.T) {
	one, _ := newEnroller(t)
	two, _ := newEnroller(t)
	many := [][]byte{}
	for i := range maxEnrollers + 1 {
		many = append(many, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, ed25519.SeedSize)).Public().(ed25519.PublicKey))
	}
	named := func(name string, g Group) Group { g.Name = name; return g }
	ca := func(name string) Group { return named(name, cloud()) }
	for name, c := range map[string]struct {
		groups []Group
		says   string
	}{
		"one":                                   {[]Group{enrolled(one)}, ""},
		"two keys":                              {[]Group{enrolled(one, two)}, ""},
		"as many as there may be":               {[]Group{enrolled(many[:maxEnrollers]...)}, ""},
		"too many":                              {[]Group{enrolled(many...)}, "at most 8"},
		"one twice":                             {[]Group{enrolled(one, two, one)}, "listed twice"},
		"a short key":                           {[]Group{enrolled(one[1:])}, "31 bytes"},
		"nobody's key":                          {[]Group{enrolled(make([]byte, ed25519.PublicKeySize))}, "small order"},
		"with authorities":                      {[]Group{{Name: "cloud", Enrollers: [][]byte{one}, Authorities: cloud().Authorities, Max: 1}}, ""},
		"with another group's authorities":      {[]Group{ca("cloud"), {Name: "other", Enrollers: [][]byte{one}, Authorities: cloud().Authorities, Max: 1}}, ""},
		"with authorities and a subject":        {[]Group{{Name: "cloud", Enrollers: [][]byte{one}, Authorities: cloud().Authorities, Subject: cloud().Subject, Max: 1}}, "beside a subject"},
		"with an empty authority":               {[]Group{{Name: "cloud", Enrollers: [][]byte{one}, Authorities: [][]byte{{}}, Max: 1}}, "authorities: want"},
		"beside a subject":                      {[]Group{{Name: "cloud", Enrollers: [][]byte{one}, Subject: cloud().Subject, Max: 1}}, "beside a subject"},
		"neither":                               {[]Group{{Name: "cloud", Max: 1}}, "authorities and roots: 0 and 0"},
		"no room":                               {[]Group{{Name: "cloud", Enrollers: [][]byte{one}}}, "max: 0"},
		"one enroller of two groups":            {[]Group{enrolled(one), named("other", enrolled(one))}, ""},
		"names of the other":                    {[]Group{enrolled(one), named("cloud-2", enrolled(two))}, "could take the names"},
		"the same the other way round":          {[]Group{named("cloud-2", enrolled(two)), enrolled(one)}, "could take the names"},
		"names of a CA's group":                 {[]Group{enrolled(one), ca("cloud-2")}, "could take the names"},
		"a CA's group, whose names are its own": {[]Group{named("cloud-2", enrolled(one)), ca("cloud")}, ""},
		"a name that only begins so":            {[]Group{enrolled(one), named("cloud2", enrolled(two))}, ""},
	} {
		p := Policy{Version: 1, Groups: c.groups}
		encoded, err := p.Encode()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if again, err := ParsePolicy(encoded); err != nil || !reflect.DeepEqual(again.Groups, c.groups) {
			t.Errorf("%s: %+v, %v", name, again.Groups, err)
		}
	}
}

func TestGroupOfRecord(t *testing.T) {
	public, private := newEnroller(t)
	signed, err := SignVoucher(private, testVoucher())
	if err != nil {
		t.Fatal(err)
	}
	p := Policy{Version: 1, Groups: []Group{enrolled(public), {Name: "rented", Authorities: cloud().Authorities, Subject: cloud().Subject, Max: 1, Pool: "b"}}}
	rented := p.Groups[1].Member(hullmark.EKID{3})
	for name, c := range map[string]struct {
		name    string
		ekid    hullmark.EKID
		voucher []byte
		want    string
	}{
		"a voucher's":           {"cloud-7", hullmark.EKID{2}, signed, "cloud"},
		"a CA's":                {rented.Name, rented.EKID, nil, "rented"},
		"a rule of its own":     {"cloud-7", hullmark.EKID{2}, nil, ""},
		"a voucher of no form":  {"cloud-7", hullmark.EKID{2}, []byte("x"), ""},
		"a name as a CA's here": {Group{Name: "cloud"}.Member(hullmark.EKID{2}).Name, hullmark.EKID{2}, nil, ""},
	} {
		if g, ok := p.Recorded(c.name, c.ekid, c.voucher); ok != (c.want != "") || ok && g.Name != c.want {
			t.Errorf("%s: group %q, %v", name, g.Name, ok)
		}
	}
	if g, ok := GroupOfRecord("cloud-7", hullmark.EKID{2}, signed); !ok || g != "cloud" {
		t.Errorf("group %q, %v", g, ok)
	}
}

func TestMembersProviderIDs(t *testing.T) {
	for name, c := range map[string]struct {
		ids  [2]string
		good bool
	}{
		"none":           {[2]string{"", ""}, true},
		"two":            {[2]string{"kind://a/b", "kind://a/c"}, true},
		"one of two":     {[2]string{"kind://a/b", "kind://a/b"}, false},
		"no provider ID": {[2]string{"worker", ""}, false},
	} {
		p := Policy{Version: 1, Members: []Member{
			{EKID: hullmark.EKID{1}, Role: hullmark.Worker, Name: "a", ProviderID: c.ids[0]}, {EKID: hullmark.EKID{2}, Role: hullmark.Worker, Name: "b", ProviderID: c.ids[1]},
		}}
		if _, err := p.Encode(); (err == nil) != c.good || err != nil && !strings.Contains(err.Error(), "provider ID") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzOpenVoucher(f *testing.F) {
	_, private := newEnroller(f)
	signed, err := SignVoucher(private, testVoucher())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Add([]byte(`{"voucher":"","enroller":"","signature":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, opened := OpenVoucher(b, anybody)
		v, _, err := ReadVoucher(b)
		if err != nil {
			if opened == nil {
				t.Error("opened, and not readable")
			}
			return
		}
		if len(b) > MaxVoucher || v.Check() != nil {
			t.Errorf("%+v of %d bytes was read", v, len(b))
		}
		var s signedVoucher
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		if again, err := hullmark.CanonicalJSON(s); err != nil || !bytes.Equal(again, b) {
			t.Errorf("two spellings of one voucher: %v", err)
		}
	})
}

func TestParseEnrollers(t *testing.T) {
	one, _ := newEnroller(t)
	two, _ := newEnroller(t)
	text := func(public any) []byte {
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text []byte
		want [][]byte
	}{
		"one":                 {text(one), [][]byte{one}},
		"two":                 {append(text(one), text(two)...), [][]byte{one, two}},
		"none":                {nil, nil},
		"another kind":        {text(other.Public()), nil},
		"something before it": {append([]byte("x\n"), text(one)...), nil},
		"something after it":  {append(text(one), 'x'), nil},
		"another block":       {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one}), nil},
		"a short key":         {pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: append([]byte(spkiEd25519), one[1:]...)}), nil},
	} {
		if got, err := ParseEnrollers(c.text); !reflect.DeepEqual(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
	}
}
