package kubeadmspec

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	kyaml "sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

type object = map[string]any

// documentOf puts a Pool into a cluster document, and leaves its parts as they are.
func documentOf(t testing.TB, p Pool, controlPlane bool) []byte {
	t.Helper()
	pool := asObject(t, p.Pool)
	pool["name"], pool["stateDisk"] = "pool", object{"serial": "state"}
	member := []object{{"name": "cp-1", "ekid": strings.Repeat("a1", 32), "addresses": []string{"192.0.2.11/24"}}}
	pools := []object{{"name": "control", "role": "control-plane", "stateDisk": object{"serial": "state"}, "members": member}, pool}
	if controlPlane {
		// Two members: the first one is init's, the other one joins.
		pool["members"] = append(member, object{"name": "cp-2", "ekid": strings.Repeat("b2", 32)})
		pools = []object{pool}
	}
	text, err := json.Marshal(object{
		"schema": render.Schema, "clusterRoot": strings.Repeat("5f", 32), "kubernetesVersion": kubeadm.Version,
		"controlPlane": object{"endpoint": "api.example:6443", "sans": p.SANs}, "timeServers": p.TimeServers,
		"pools": pools, "overrides": p.Overrides,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func asObject(t testing.TB, value any) object {
	t.Helper()
	tree, err := asJSON(value)
	if err != nil {
		t.Fatal(err)
	}
	return tree.(object)
}

// mark begins a document of a stream.
var mark = regexp.MustCompile(`(?m)^---$`)

// rendered renders a Pool, and returns all that came out under the names that the table has for it.
func rendered(t testing.TB, p Pool, controlPlane bool) object {
	t.Helper()
	document, err := render.Parse(documentOf(t, p, controlPlane))
	if err != nil {
		t.Fatal(err)
	}
	files, err := render.Render(document, measurements.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	all := object{}
	contents := render.Contents(files)
	for _, part := range mark.Split(string(contents["init.yaml"])+string(contents["pools/pool/join.yaml"]), -1) {
		document := parsed(t, part)
		kind, _ := document["kind"].(string)
		all[kind] = document
	}
	placed := parsed(t, string(contents["pools/pool/files.yaml"]))
	registration := all["JoinConfiguration"].(object)["nodeRegistration"].(object)
	if first := all["InitConfiguration"].(object)["nodeRegistration"].(object); controlPlane && !reflect.DeepEqual(first["taints"], registration["taints"]) {
		t.Errorf("the first node's taints are %v, the others' %v", first["taints"], registration["taints"])
	}
	all["pool"] = object{"taints": registration["taints"], "files": placed["files"]}
	all["controlPlane"] = object{"sans": all["ClusterConfiguration"].(object)["apiServer"].(object)["certSANs"]}
	all["timeServers"] = parsed(t, string(contents["pools/pool/node-config.json"]))["timeServers"]
	return all
}

func parsed(t testing.TB, text string) (document object) {
	t.Helper()
	if err := kyaml.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// holds reports whether a value is at a place of the table, in any element of a list.
func holds(tree any, where string, want any) bool {
	if where == "" {
		return reflect.DeepEqual(tree, want)
	}
	name, rest, _ := strings.Cut(where, ".")
	name, isList := strings.CutSuffix(name, "[]")
	below, _ := tree.(object)
	if !isList {
		return holds(below[name], rest, want)
	}
	list, _ := below[name].([]any)
	return slices.ContainsFunc(list, func(element any) bool { return holds(element, rest, want) })
}

// reach returns the value at a path of a spec, which it makes; each list has one element.
func reach(v reflect.Value, path string) reflect.Value {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if rest, ok := strings.CutPrefix(path, "[]"); ok {
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		return reach(v.Index(0), strings.TrimPrefix(rest, "."))
	}
	if path == "" {
		return v
	}
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	fields := fieldsOf(v.Type())
	i := slices.IndexFunc(fields, func(f step) bool { return f.name == path[:end] })
	return reach(v.FieldByIndex(fields[i].index), strings.TrimPrefix(path[end:], "."))
}

// fill sets a value to something.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		if v.CanAddr() && v.NumField() > 0 && v.Field(0).CanSet() {
			fill(v.Field(0))
		}
	}
}

// sample is what a field is set to, and what is to be found again of it.
type sample struct {
	set  string // in JSON
	want any
}

var samples = map[string]sample{
	"certSANs[]":              {`"marker.example"`, "marker.example"},
	"serverCertSANs[]":        {`"marker.example"`, "marker.example"},
	"peerCertSANs[]":          {`"marker.example"`, "marker.example"},
	"ignorePreflightErrors[]": {`"Marker"`, "Marker"},
	"servers[]":               {`"marker.example"`, "marker.example"},
	"name":                    {`"marker"`, "marker"},
	"value":                   {`"marker"`, "marker"},
	"apiVersion":              {`"v1"`, "v1"},
	"fieldPath":               {`"status.hostIP"`, "status.hostIP"},
	"containerName":           {`"marker"`, "marker"},
	"resource":                {`"limits.cpu"`, "limits.cpu"},
	"divisor":                 {`"17m"`, "17m"},
	"hostPath":                {`"/marker"`, "/marker"},
	"mountPath":               {`"/mounted"`, "/mounted"},
	"readOnly":                {"false", false},
	"pathType":                {`"File"`, "File"},
	"key":                     {`"example.com/marker"`, "example.com/marker"},
	"effect":                  {`"PreferNoSchedule"`, "PreferNoSchedule"},
	"taints":                  {"[]", []any{}},
	"imagePullPolicy":         {`"Never"`, "Never"},
	"imagePullSerial":         {"false", false},
	"featureGates":            {`{"Marker": true}`, object{"Marker": true}},
	"encryptionAlgorithm":     {`"ECDSA-P384"`, "ECDSA-P384"},
	"path":                    {`"/etc/kubernetes/marker"`, "/etc/kubernetes/marker"},
	"permissions":             {`"640"`, "0640"},
	"content":                 {`"marker\n"`, "marker\n"},
	"encoding":                {`"base64"`, "marker"},
	"controlPlaneComponentHealthCheckSeconds": {"77", "1m17s"},
	"kubeletHealthCheckSeconds":               {"77", "1m17s"},
	"kubernetesAPICallSeconds":                {"77", "1m17s"},
	"etcdAPICallSeconds":                      {"77", "1m17s"},
	"tlsBootstrapSeconds":                     {"77", "1m17s"},
	"discoverySeconds":                        {"0", "0s"},
}

func put(t testing.TB, spec *bootstrapv1.KubeadmConfigSpec, path, value string) {
	t.Helper()
	if err := json.Unmarshal([]byte(value), reach(reflect.ValueOf(spec).Elem(), path).Addr().Interface()); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// twin is the same field of the configuration with which the first node, or the others, are made.
func twin(path string) string {
	if rest, ok := strings.CutPrefix(path, "initConfiguration."); ok {
		return "joinConfiguration." + rest
	}
	return "initConfiguration." + strings.TrimPrefix(path, "joinConfiguration.")
}

func lastName(path string) string { return path[strings.LastIndex(path, ".")+1:] }

// setHonoured sets an honoured field, what the objects around it need, and, where two have to agree, the other one.
func setHonoured(t testing.TB, spec *bootstrapv1.KubeadmConfigSpec, f Field, controlPlane bool) {
	t.Helper()
	var paths []string
	for i, r := range f.Path {
		if r == '.' {
			paths = append(paths, required[f.Path[:i]]...)
		}
	}
	for _, path := range append(paths, f.Path) {
		put(t, spec, path, samples[lastName(path)].set)
		if other := twin(path); controlPlane && (strings.Contains(f.Path, ".taints") || f.agrees) {
			put(t, spec, other, samples[lastName(path)].set)
		}
	}
	if f.Path == "files[].encoding" {
		spec.Files[0].Content = "bWFya2Vy"
	}
}

// below reports whether a worker must not say it.
func below(path string) bool {
	for _, f := range fields {
		if f.Workers != "" && (path == f.Path || strings.HasPrefix(path, f.Path+".")) {
			return true
		}
	}
	return false
}

// Each field that is honoured is found again where the table says, in what is rendered.
func TestHonouredFieldsAreRendered(t *testing.T) {
	count := 0
	for _, f := range fields {
		if f.Where == "" {
			continue
		}
		for _, controlPlane := range []bool{true, false} {
			spec := &bootstrapv1.KubeadmConfigSpec{}
			setHonoured(t, spec, f, controlPlane)
			pool, refusals := Map(spec, controlPlane)
			if !controlPlane && below(f.Path) {
				if len(refusals) == 0 {
					t.Errorf("%s: taken for a worker", f.Path)
				}
				continue
			}
			if len(refusals) > 0 {
				t.Errorf("%s: refused: %v", f.Path, refusals)
				continue
			}
			count++
			before, _ := Map(nil, controlPlane)
			want := samples[lastName(f.Path)].want
			if holds(rendered(t, before, controlPlane), f.Where, want) {
				t.Errorf("%s: %v is at %s even without", f.Path, want, f.Where)
			}
			if !holds(rendered(t, pool, controlPlane), f.Where, want) {
				t.Errorf("%s: no %v at %s", f.Path, want, f.Where)
			}
		}
	}
	if count < 50 {
		t.Errorf("only %d fields were honoured", count)
	}
}

// concrete is a path of the table with the index of the only element.
func concrete(path string) string { return strings.ReplaceAll(path, "[]", "[0]") }

// Each field that is refused is refused by its name and for its reason, unless it says what Hullmark does anyway.
func TestRefusedFieldsAreNamed(t *testing.T) {
	for _, f := range fields {
		if f.Where != "" || f.open {
			continue
		}
		for _, controlPlane := range []bool{true, false} {
			want := Refusal{Field: concrete(f.Path), Reason: f.Why}
			if !controlPlane && below(f.Path) {
				want = workerRefusal(f.Path)
			}
			spec := &bootstrapv1.KubeadmConfigSpec{}
			v := reach(reflect.ValueOf(spec).Elem(), f.Path)
			fill(v)
			if f.Path == "ntp.enabled" {
				v.SetBool(false)
			}
			pool, refusals := Map(spec, controlPlane)
			if !slices.Contains(refusals, want) || !reflect.DeepEqual(pool, Pool{}) {
				t.Errorf("%s: got %v, %v, want %v", f.Path, pool, refusals, want)
			}
			for _, same := range f.Same {
				text, err := json.Marshal(same)
				if err != nil {
					t.Fatal(err)
				}
				put(t, spec, f.Path, string(text))
				_, refusals := Map(spec, controlPlane)
				if named := slices.ContainsFunc(refusals, func(r Refusal) bool { return r.Field == want.Field }); named == (controlPlane || !below(f.Path)) {
					t.Errorf("%s: %v: got %v", f.Path, same, refusals)
				}
			}
		}
	}
}

// workerRefusal is what is said to a worker of a field of the control plane's.
func workerRefusal(path string) Refusal {
	for _, f := range fields {
		if f.Workers != "" && strings.HasPrefix(path, f.Path+".") {
			return Refusal{f.Path, f.Workers}
		}
	}
	return Refusal{}
}

// What is taken as ours is what our own documents say, where they say it.
func TestSameIsWhatIsRendered(t *testing.T) {
	pool, _ := Map(nil, true)
	documents := rendered(t, pool, true)
	count := 0
	for _, f := range fields {
		section, path, _ := strings.Cut(f.Path, ".")
		kind := strings.ToUpper(section[:1]) + section[1:]
		if len(f.Same) == 0 || !said(documents, kind+"."+path) {
			continue
		}
		count++
		if !holds(documents, kind+"."+path, f.Same[0]) {
			t.Errorf("%s: %v is not what is rendered", f.Path, f.Same[0])
		}
	}
	if count < 6 {
		t.Errorf("only %d values are in the documents", count)
	}
}

// said reports whether a document says anything at a path.
func said(tree any, path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		below, _ := tree.(object)
		tree = below[name]
	}
	return tree != nil
}
