package render

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	kyaml "sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// samples are the documents in testdata; `hullmark render NAME.yaml --out NAME` there makes what is expected of each.
var samples = []string{"small", "rich"}

func sample(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func rendered(t testing.TB, text []byte, policy measurements.Policy) map[string]string {
	t.Helper()
	document, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	files, err := Render(document, policy)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]string{}
	for i, f := range files {
		if i > 0 && f.Name <= files[i-1].Name {
			t.Errorf("%s does not follow %s", f.Name, files[i-1].Name)
		}
		byName[f.Name] = string(f.Content)
	}
	return byName
}

func TestRender(t *testing.T) {
	for _, name := range samples {
		got := rendered(t, sample(t, name), measurements.Policy{})
		folder := filepath.Join("testdata", name)
		err := fs.WalkDir(os.DirFS(folder), ".", func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			want, err := os.ReadFile(filepath.Join(folder, file))
			if err != nil {
				return err
			}
			if got[file] != string(want) {
				t.Errorf("%s: %s: got\n%s\nwant\n%s", name, file, got[file], want)
			}
			delete(got, file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for file := range got {
			t.Errorf("%s: %s is not expected", name, file)
		}
	}
}

// TestRenderDependsOnNothingElse gives the document with its fields in another order, and as JSON, and again and again.
func TestRenderDependsOnNothingElse(t *testing.T) {
	for _, name := range samples {
		text := sample(t, name)
		want := rendered(t, text, measurements.Policy{})
		sortedJSON, err := kyaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		sortedYAML, err := kyaml.JSONToYAML(sortedJSON)
		if err != nil {
			t.Fatal(err)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, sortedJSON, "", "\t"); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			for _, other := range [][]byte{text, sortedJSON, sortedYAML, indented.Bytes()} {
				got := rendered(t, other, measurements.Policy{})
				if len(got) != len(want) {
					t.Fatalf("%s: %d files, then %d", name, len(want), len(got))
				}
				for file := range want {
					if got[file] != want[file] {
						t.Fatalf("%s: %s differs:\n%s", name, file, got[file])
					}
				}
			}
		}
	}
}

func TestNodeConfigsAreWhatNodesTake(t *testing.T) {
	for _, name := range samples {
		count := 0
		for file, text := range rendered(t, sample(t, name), measurements.Policy{}) {
			if !strings.HasSuffix(file, configFile) {
				continue
			}
			count++
			if _, err := hullmark.ParseNodeConfig([]byte(text)); err != nil {
				t.Errorf("%s: %s: %v", name, file, err)
			}
		}
		if count == 0 {
			t.Errorf("%s: no node configuration", name)
		}
	}
}

// A pool's interfaces and proxy are its machines', unless a machine has a network of its own.
func TestInterfaces(t *testing.T) {
	pool := `
  interfaces:
  - name: any
    card: {driver: virtio_net}
    dhcp4: {}
  proxy: {https: "http://192.0.2.9:3128"}
`
	member := "  members:\n  - name: control-plane-1\n"
	own := `    interfaces:
    - {name: left, card: {mac: "52:54:00:12:34:56"}}
    - {name: nodes, vlan: {id: 100, link: left}, addresses: [10.0.2.21/24], routes: [{gateway: 10.0.2.2}]}
`
	small := string(sample(t, "small"))
	shared := strings.NewReplacer("    addresses: [10.0.2.15/24]\n    gateway: 10.0.2.2\n", "", "endpoint: 10.0.2.15:6443", "endpoint: 10.0.2.15:6443\n  advertiseAddress: 10.0.2.15").Replace(small)
	shared = strings.TrimSpace(shared) + pool
	alone := strings.NewReplacer(member, member+own, "  advertiseAddress: 10.0.2.15\n", "").Replace(shared)
	for text, want := range map[string]struct{ file, name, advertise, endpoint string }{
		shared: {"pools/control/node-config.json", "any", "10.0.2.15", "10.0.2.15:" + attest.JoinPort},
		alone:  {"nodes/control-plane-1/node-config.json", "left", "10.0.2.21", "10.0.2.21:" + attest.JoinPort},
	} {
		document, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if document.ControlPlane.AdvertiseAddress != want.advertise || !slices.Equal(document.JoinEndpoints, []string{want.endpoint}) {
			t.Errorf("%s: advertised %s, joined at %v", want.file, document.ControlPlane.AdvertiseAddress, document.JoinEndpoints)
		}
		config, err := hullmark.ParseNodeConfig([]byte(rendered(t, []byte(text), measurements.Policy{})[want.file]))
		if err != nil {
			t.Fatal(err)
		}
		if config.Interfaces[0].Name != want.name || config.Proxy == nil || config.Proxy.HTTPS != "http://192.0.2.9:3128" {
			t.Errorf("%s: %+v, proxy %+v", want.file, config.Interfaces, config.Proxy)
		}
	}
	for text, want := range map[string]string{
		strings.Replace(shared, "dhcp4: {}", "addresses: [10.0.2.21/24]", 1):           "pools[0] (control): interfaces[0] (any): addresses: every machine of the pool would have them",
		strings.Replace(alone, "10.0.2.21/24", "10.96.0.21/24", 1):                     "pools[0] (control): control-plane-1: address 10.96.0.21: it is of the services' network",
		strings.Replace(alone, "52:54:00:12:34:56", "5254.0012.3456", 1):               "interfaces",
		strings.Replace(shared, `"http://192.0.2.9:3128"`, `"http://me@192.0.2.9"`, 1): "proxy",
	} {
		document, err := Parse([]byte(text))
		if err == nil {
			_, err = Render(document, measurements.Policy{})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The profile slow elects leaders where the document has a second control plane.
func TestSlowLeaders(t *testing.T) {
	one := "profile: slow\n" + string(sample(t, "small"))
	two := one + "  - {name: control-plane-2, ekid: " + strings.Repeat("2b", 32) + ", addresses: [10.0.2.16/24], gateway: 10.0.2.2}\n"
	for text, elected := range map[string]bool{one: false, two: true} {
		got := rendered(t, []byte(text), measurements.Policy{})["init.yaml"]
		if off := strings.Contains(got, "name: leader-elect\n"); off == elected {
			t.Errorf("leaders elected: %v, want %v:\n%s", !off, elected, got)
		}
	}
}

func TestJoinEndpointsByDefault(t *testing.T) {
	small := string(sample(t, "small"))
	for change, want := range map[string]string{
		"addresses: [10.0.2.15/24]":  "10.0.2.15:" + attest.JoinPort,
		`addresses: ["fd00::15/64"]`: "[fd00::15]:" + attest.JoinPort,
		"addresses: []":              "10.0.9.9:" + attest.JoinPort,
	} {
		text := strings.NewReplacer("addresses: [10.0.2.15/24]", change, "endpoint: 10.0.2.15:6443", "endpoint: 10.0.9.9:6443\n  advertiseAddress: 10.0.2.15").Replace(small)
		document, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(document.JoinEndpoints, []string{want}) {
			t.Errorf("%s: got %v, want %s", change, document.JoinEndpoints, want)
		}
	}
}

func TestDraftKeepsThePolicyInForce(t *testing.T) {
	text := sample(t, "small")
	draft := func(policy measurements.Policy) measurements.Policy {
		t.Helper()
		parsed, err := measurements.ParsePolicy([]byte(rendered(t, text, policy)[PolicyFile]))
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	first := draft(measurements.Policy{})
	if first.Version != 1 || len(first.Members) != 1 || first.Members[0].Role != hullmark.ControlPlane {
		t.Fatalf("the first draft is %+v", first)
	}
	inForce := measurements.Policy{
		Version: 7, MinimumSVN: 3,
		Documents: []measurements.Accepted{{Document: measurements.DocumentID{1}}},
		Members:   []measurements.Member{{EKID: hullmark.EKID{1}, Role: hullmark.Worker, Name: "gone"}},
	}
	next := draft(inForce)
	if next.Version != 8 || next.MinimumSVN != 3 || len(next.Documents) != 1 || !slices.Equal(next.Members, first.Members) {
		t.Errorf("the draft is %+v", next)
	}
	if again := draft(next); again.Version != 8 {
		t.Errorf("a draft that changes nothing has version %d", again.Version)
	}
}

// A pool of an enroller's machines is a group of the policy, too, and a member's provider ID goes where its kubelet is told it.
func TestEnrolledPoolIsAGroup(t *testing.T) {
	const key = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"
	enrolled := func(key, more string) []byte {
		indented := strings.ReplaceAll(strings.TrimRight(key, "\n"), "\n", "\n      ")
		return []byte(strings.Replace(string(sample(t, "small")), "pools:\n", "pools:\n- name: cloud\n  role: worker\n  stateDisk: {serial: state}\n  vouched:\n    enrollers: |\n      "+
			indented+"\n    max: 20\n"+more, 1))
	}
	policy, err := measurements.ParsePolicy([]byte(rendered(t, enrolled(key, ""), measurements.Policy{})[PolicyFile]))
	if err != nil {
		t.Fatal(err)
	}
	if g := policy.Groups; len(g) != 1 || g[0].Name != "cloud" || len(g[0].Enrollers) != 1 || g[0].Enrollers[0][0] != 0x19 || g[0].Max != 20 {
		t.Errorf("the policy is %+v", policy)
	}
	for says, text := range map[string][]byte{
		"beside a subject":            enrolled(key, "    subject: {OU: mine}\n"),
		"want public keys in PEM":     enrolled("none", ""),
		"public keys in PEM and noth": enrolled(key+"none", ""),
	} {
		c, err := Parse(text)
		if err == nil {
			_, err = Render(c, measurements.Policy{})
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// A pool of machines that somebody vouches for is a group of the policy.
func TestVouchedPoolIsAGroup(t *testing.T) {
	const authority = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nAQIE\n-----END CERTIFICATE-----\n" // Who signs the policy looks into it.
	vouched := func(role, authority, subject string) []byte {
		indented := strings.ReplaceAll(strings.TrimRight(authority, "\n"), "\n", "\n      ")
		return []byte(strings.Replace(string(sample(t, "small")), "pools:\n", "pools:\n- name: cloud\n  role: "+role+"\n  stateDisk: {serial: state}\n  vouched:\n    authorities: |\n      "+
			indented+"\n    subject: {"+subject+"}\n    max: 20\n", 1))
	}
	policy, err := measurements.ParsePolicy([]byte(rendered(t, vouched("worker", authority, "OU: my-project, L: here"), measurements.Policy{Version: 3, Denied: []hullmark.EKID{{7}}})[PolicyFile]))
	if err != nil {
		t.Fatal(err)
	}
	want := measurements.Group{Name: "cloud", Pool: "cloud", Authorities: [][]byte{{1, 2, 3}, {1, 2, 4}}, Subject: []measurements.Attribute{{Type: "L", Value: "here"}, {Type: "OU", Value: "my-project"}}, Max: 20}
	if len(policy.Groups) != 1 || !reflect.DeepEqual(policy.Groups[0], want) || policy.Version != 4 || !policy.Denies(hullmark.EKID{7}) {
		t.Errorf("the policy is %+v", policy)
	}
	again := rendered(t, vouched("worker", authority, "L: here, OU: my-project"), policy)[PolicyFile]
	if same, err := measurements.ParsePolicy([]byte(again)); err != nil || same.Version != 4 {
		t.Errorf("a draft that changes nothing has version %d, %v", same.Version, err)
	}
	for says, text := range map[string][]byte{
		"a control-plane is only admitted by its own ekid": vouched("control-plane", authority, "OU: my-project"),
		"authorities: no certificate in PEM":               vouched("worker", "none", "OU: my-project"),
		"authorities: beside certificates in PEM":          vouched("worker", authority[:len(authority)-10], "OU: my-project"),
		"want at least one attribute":                      vouched("worker", authority, ""),
		"want CN, O, OU, L, ST or C":                       vouched("worker", authority, "UID: me"),
	} {
		c, err := Parse(text)
		if err == nil {
			_, err = Render(c, measurements.Policy{})
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// TestTakenPathsAreAllThere holds the list against what a control plane is given, what kubeadm leaves on a worker, and where a
// snapshot lies.
func TestTakenPathsAreAllThere(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	given, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, f := range given {
		paths = append(paths, f.GetPath())
	}
	for _, p := range append(kubeadm.JoinRemains(), append(kubeadm.Renewals(), kubeadm.RenewFile)...) {
		if strings.HasPrefix(p, "/etc/kubernetes/") {
			paths = append(paths, p)
		}
	}
	for _, p := range paths {
		if err := measurements.CheckPlaced([]measurements.PlacedFile{{Path: p, Mode: "0644"}}, nil); err == nil || !strings.Contains(err.Error(), "writes") {
			t.Errorf("%s: got %v", p, err)
		}
	}
}

// FuzzParse wants no panic, and of a document that is accepted the same rendering twice, or the same refusal.
func FuzzParse(f *testing.F) {
	for _, name := range samples {
		text := sample(f, name)
		f.Add(text)
		asJSON, err := kyaml.YAMLToJSON(text)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(asJSON)
	}
	f.Add([]byte("a: &a [*a]\n---\nb"))
	f.Fuzz(func(t *testing.T, text []byte) {
		document, err := Parse(text)
		if err != nil {
			return
		}
		first, err := Render(document, measurements.Policy{})
		again, errAgain := Parse(text)
		if errAgain != nil {
			t.Fatalf("refused the second time: %v", errAgain)
		}
		second, errAgain := Render(again, measurements.Policy{})
		if (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Fatalf("%v, then %v", err, errAgain)
		}
		if !slices.EqualFunc(first, second, func(a, b Rendered) bool { return a.Name == b.Name && bytes.Equal(a.Content, b.Content) }) {
			t.Fatal("two renderings differ")
		}
		for _, r := range first {
			if !fs.ValidPath(r.Name) {
				t.Errorf("%q leads out of its folder", r.Name)
			}
		}
	})
}

// A pool's disks are its machines', unless a machine names its own; a member that does so keeps the pool's network.
func TestDisksOfBareMachines(t *testing.T) {
	pool := `
  install: {disk: {path: /dev/nvme0n1}}
  interfaces:
  - {name: any, card: {driver: virtio_net}, dhcp4: {}}
`
	member := "  members:\n  - name: control-plane-1\n"
	shared := strings.NewReplacer("    addresses: [10.0.2.15/24]\n    gateway: 10.0.2.2\n", "", "endpoint: 10.0.2.15:6443", "endpoint: 10.0.2.15:6443\n  advertiseAddress: 10.0.2.15").
		Replace(string(sample(t, "small")))
	shared = strings.TrimSpace(shared) + pool
	own := strings.Replace(shared, member, member+"    stateDisk: {serial: S-2}\n    install: {disk: {serial: S-1}, overwrite: S-1}\n", 1)
	ofPool := hullmark.Install{Disk: hullmark.DiskSelector{Path: "/dev/nvme0n1"}}
	ofMember := hullmark.Install{Disk: hullmark.DiskSelector{Serial: "S-1"}, Overwrite: "S-1"}
	for text, want := range map[string]struct {
		file, state string
		install     hullmark.Install
	}{
		shared: {"pools/control/node-config.json", "hullmark-state", ofPool},
		own:    {"nodes/control-plane-1/node-config.json", "S-2", ofMember},
	} {
		config, err := hullmark.ParseNodeConfig([]byte(rendered(t, []byte(text), measurements.Policy{})[want.file]))
		if err != nil {
			t.Fatal(err)
		}
		if config.Install == nil || *config.Install != want.install || config.StateDisk.Serial != want.state || len(config.Interfaces) != 1 {
			t.Errorf("%s: installs %+v, state disk %+v, %d interfaces", want.file, config.Install, config.StateDisk, len(config.Interfaces))
		}
	}
}
