package kubeadmspec

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	kyaml "sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/measurements"
)

func specOf(t testing.TB, text string) *bootstrapv1.KubeadmConfigSpec {
	t.Helper()
	spec := &bootstrapv1.KubeadmConfigSpec{}
	if err := kyaml.UnmarshalStrict([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// mapped is Map of what is honoured.
func mapped(t testing.TB, spec *bootstrapv1.KubeadmConfigSpec, controlPlane bool) Pool {
	t.Helper()
	pool, refusals := Map(spec, controlPlane)
	if len(refusals) > 0 {
		t.Fatalf("refused: %v", refusals)
	}
	return pool
}

// A spec as people have it, for a control plane.
const ordinary = `
clusterConfiguration:
  apiServer:
    certSANs: [api.prod.example, 203.0.113.7]
    extraArgs:
    - {name: audit-policy-file, value: /etc/kubernetes/audit.yaml}
    - {name: audit-log-path, value: "-"}
    extraVolumes:
    - {name: audit, hostPath: /etc/kubernetes/audit.yaml, mountPath: /etc/kubernetes/audit.yaml, readOnly: true, pathType: File}
    extraEnvs: [{name: GOGC, value: "200"}, {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]
  etcd: {local: {dataDir: /var/lib/etcd, extraArgs: [{name: quota-backend-bytes, value: "8589934592"}]}}
  featureGates: {RootlessControlPlane: false}
  certificatesDir: /etc/kubernetes/pki
initConfiguration:
  localAPIEndpoint: {bindPort: 6443}
  nodeRegistration:
    criSocket: unix:///run/containerd/containerd.sock
    imagePullPolicy: Never
    kubeletExtraArgs: [{name: v, value: "4"}, {name: node-labels, value: "example.com/disks=many,zone="}, {name: max-pods, value: "60"}]
    taints: []
joinConfiguration:
  nodeRegistration:
    kubeletExtraArgs: [{name: node-labels, value: "zone=,example.com/disks=many"}]
    taints: []
  controlPlane: {localAPIEndpoint: {bindPort: 6443}}
  timeouts: {kubeletHealthCheckSeconds: 480}
files:
- {path: /etc/kubernetes/audit.yaml, owner: "root:root", permissions: "0640", append: false, content: "rules: []\n"}
ntp: {enabled: true, servers: [time.prod.example]}
`

func TestMapWholeSpec(t *testing.T) {
	got := mapped(t, specOf(t, ordinary), true)
	text, err := kyaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const want = `overrides:
- apiServer:
    extraArgs:
    - name: audit-policy-file
      value: /etc/kubernetes/audit.yaml
    - name: audit-log-path
      value: '-'
    extraEnvs:
    - name: GOGC
      value: "200"
    - name: HOST
      valueFrom:
        fieldRef:
          fieldPath: status.hostIP
    extraVolumes:
    - hostPath: /etc/kubernetes/audit.yaml
      mountPath: /etc/kubernetes/audit.yaml
      name: audit
      pathType: File
      readOnly: true
  apiVersion: kubeadm.k8s.io/v1beta4
  etcd:
    local:
      extraArgs:
      - name: quota-backend-bytes
        value: "8589934592"
  featureGates:
    RootlessControlPlane: false
  kind: ClusterConfiguration
- apiVersion: kubeadm.k8s.io/v1beta4
  kind: InitConfiguration
  nodeRegistration:
    imagePullPolicy: Never
    kubeletExtraArgs:
    - name: v
      value: "4"
    - name: max-pods
      value: "60"
pool:
  files:
  - content: |
      rules: []
    mode: "0640"
    path: /etc/kubernetes/audit.yaml
  labels:
    example.com/disks: many
    zone: ""
  name: ""
  overrides:
  - apiVersion: kubeadm.k8s.io/v1beta4
    kind: JoinConfiguration
    timeouts:
      kubeletHealthCheck: 8m0s
  role: control-plane
  stateDisk: {}
  taints: []
sans:
- api.prod.example
- 203.0.113.7
timeServers:
- time.prod.example
`
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	documents := rendered(t, got, true)
	if !holds(documents, "JoinConfiguration.nodeRegistration.kubeletExtraArgs[].value", "example.com/disks=many,zone=") ||
		!holds(documents, "InitConfiguration.nodeRegistration.kubeletExtraArgs[].value", "example.com/disks=many,zone=") {
		t.Error("the labels are not in both documents")
	}
}

func TestTaintsNoneEmptyGiven(t *testing.T) {
	worker := func(taints *[]corev1.Taint) *[]render.Taint {
		spec := &bootstrapv1.KubeadmConfigSpec{}
		spec.JoinConfiguration.NodeRegistration.Taints = taints
		return mapped(t, spec, false).Pool.Taints
	}
	if got := worker(nil); got != nil {
		t.Errorf("none: got %v", *got)
	}
	if got := worker(&[]corev1.Taint{}); got == nil || len(*got) != 0 {
		t.Errorf("empty: got %v", got)
	}
	want := []render.Taint{{Key: "a", Value: "b", Effect: "NoExecute"}, {Key: "c", Effect: "NoSchedule"}}
	got := worker(&[]corev1.Taint{{Key: "a", Value: "b", Effect: "NoExecute"}, {Key: "c", Effect: "NoSchedule"}})
	if got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("given: got %v", got)
	}
}

// packed is what gzip makes of a text.
func packed(t testing.TB, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func TestFilesAreDecoded(t *testing.T) {
	const text = "größer\n{{ ds.meta_data }}\n"
	zipped := packed(t, []byte(text))
	spec := &bootstrapv1.KubeadmConfigSpec{Files: []bootstrapv1.File{
		{Path: "/etc/kubernetes/a", Content: encoded(text), Encoding: bootstrapv1.Base64},
		{Path: "/etc/kubernetes/b", Content: zipped, Encoding: bootstrapv1.Gzip, Permissions: "0600"},
		{Path: "/var/lib/hullmark/c", Content: encoded(zipped)[:8] + "\n" + encoded(zipped)[8:], Encoding: bootstrapv1.GzipBase64, Permissions: "755"},
		{Path: "/etc/kubernetes/empty"},
	}}
	want := []render.File{
		{Path: "/etc/kubernetes/a", Content: text},
		{Path: "/etc/kubernetes/b", Mode: "0600", Content: text},
		{Path: "/var/lib/hullmark/c", Mode: "0755", Content: text},
		{Path: "/etc/kubernetes/empty"},
	}
	if got := mapped(t, spec, false).Pool.Files; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

// A refusal that a spec gets: its field, and a part of the reason.
type wanted struct{ field, says string }

var refusals = map[string]struct {
	spec   string
	worker bool
	want   []wanted
}{
	"owned argument": {"clusterConfiguration: {apiServer: {extraArgs: [{name: v, value: '4'}, {name: authorization-mode, value: AlwaysAllow}]}}", false, []wanted{
		{"clusterConfiguration.apiServer.extraArgs[1]", "apiServer.extraArgs: authorization-mode: Hullmark sets it itself; leave it out"},
	}},
	"arguments of each list": {"{clusterConfiguration: {etcd: {local: {extraArgs: [{name: data_dir, value: /x}]}}, controllerManager: {extraArgs: [{name: controllers, value: '*'}, {name: flex-volume-plugin-dir, value: /x}]}, scheduler: {extraArgs: [{name: emulated-version}]}}, joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: hostname-override, value: x}]}}}", false, []wanted{
		{"clusterConfiguration.controllerManager.extraArgs[0]", "controllers: Hullmark sets it"},
		{"clusterConfiguration.controllerManager.extraArgs[1]", "flex-volume-plugin-dir: Hullmark sets it"},
		{"clusterConfiguration.etcd.local.extraArgs[0]", "data-dir: Hullmark sets it"},
		{"clusterConfiguration.scheduler.extraArgs[0]", "emulated-version: Hullmark sets it"},
		{"joinConfiguration.nodeRegistration.kubeletExtraArgs[0]", "hostname-override: Hullmark sets it itself; the node has its Machine's name"},
	}},
	"taints by argument": {"joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: register-with-taints, value: 'a=b:NoSchedule'}]}}", true, []wanted{
		{"joinConfiguration.nodeRegistration.kubeletExtraArgs[0]", "use nodeRegistration.taints"},
	}},
	"no argument":          {"joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: --V, value: '4'}]}}", true, []wanted{{"joinConfiguration.nodeRegistration.kubeletExtraArgs[0]", "lower-case letters"}}},
	"API switched off":     {"clusterConfiguration: {apiServer: {extraArgs: [{name: runtime-config, value: admissionregistration.k8s.io/v1=false}]}}", false, []wanted{{"clusterConfiguration.apiServer.extraArgs[0]", "want it true"}}},
	"argument without":     {"clusterConfiguration: {apiServer: {extraArgs: [{value: x}]}}", false, []wanted{{"clusterConfiguration.apiServer.extraArgs[0].name", "it is missing"}}},
	"empty elements":       {"{clusterConfiguration: {apiServer: {extraArgs: [{}], extraVolumes: [{}], extraEnvs: [{}]}}}", false, []wanted{{"clusterConfiguration.apiServer.extraArgs[0].name", "it is missing"}, {"clusterConfiguration.apiServer.extraEnvs[0].name", "it is missing"}, {"clusterConfiguration.apiServer.extraVolumes[0].name", "it is missing"}, {"clusterConfiguration.apiServer.extraVolumes[0].hostPath", "it is missing"}, {"clusterConfiguration.apiServer.extraVolumes[0].mountPath", "it is missing"}}},
	"SAN with a port":      {"clusterConfiguration: {apiServer: {certSANs: [a.example, 'b.example:1']}}", false, []wanted{{"clusterConfiguration.apiServer.certSANs[1]", "without a port"}}},
	"time server":          {"ntp: {servers: [a.example, 'a b']}", true, []wanted{{"ntp.servers[1]", "a b"}}},
	"negative timeout":     {"joinConfiguration: {timeouts: {discoverySeconds: -1}}", true, []wanted{{"joinConfiguration.timeouts.discoverySeconds", "want none or more"}}},
	"label of Kubernetes":  {"joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: v, value: '4'}, {name: node_labels, value: 'a=b,node-role.kubernetes.io/x='}]}}", true, []wanted{{"joinConfiguration.nodeRegistration.kubeletExtraArgs[1]", "a kubelet may not set it on its own Node"}}},
	"label without value":  {"joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: node-labels, value: 'a=b,c'}]}}", true, []wanted{{"joinConfiguration.nodeRegistration.kubeletExtraArgs[0].value", `"c": want key=value`}}},
	"label twice":          {"joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: node-labels, value: a=b}, {name: node-labels, value: a=c}]}}", true, []wanted{{"joinConfiguration.nodeRegistration.kubeletExtraArgs[1].value", "a: named twice"}}},
	"labels differ":        {"{initConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: node-labels, value: a=b}]}}, joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: node-labels, value: a=c}]}}}", false, []wanted{{"initConfiguration.nodeRegistration.kubeletExtraArgs", "joinConfiguration.nodeRegistration.kubeletExtraArgs"}}},
	"labels of the first":  {"{initConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: node-labels, value: a=b}]}}}", false, []wanted{{"initConfiguration.nodeRegistration.kubeletExtraArgs", "the same labels for all of its nodes"}}},
	"taints of the others": {"{joinConfiguration: {nodeRegistration: {taints: []}}}", false, []wanted{{"initConfiguration.nodeRegistration.taints", "the same taints for all of its nodes"}}},
	"taint's effect":       {"joinConfiguration: {nodeRegistration: {taints: [{key: a, effect: NoSchedule}, {key: a, effect: Never}]}}", true, []wanted{{"joinConfiguration.nodeRegistration.taints[1]", `effect "Never"`}}},
	"taint without":        {"joinConfiguration: {nodeRegistration: {taints: [{key: '', effect: ''}]}}", true, []wanted{{"joinConfiguration.nodeRegistration.taints[0].key", "it is missing"}, {"joinConfiguration.nodeRegistration.taints[0].effect", "it is missing"}}},
	"file elsewhere":       {"files: [{path: /etc/kubernetes/a, content: a}, {path: /etc/passwd, content: a}]", true, []wanted{{"files[1].path", "want a clean path below /etc/kubernetes/ or /var/lib/hullmark/"}}},
	"file of kubeadm":      {"files: [{path: /etc/kubernetes/pki/ca.key, content: a}]", true, []wanted{{"files[0].path", "it is what Hullmark or kubeadm writes"}}},
	"file without a path":  {"files: [{content: a}]", true, []wanted{{"files[0].path", "it is missing"}}},
	"file twice":           {"files: [{path: /etc/kubernetes/a, content: a}, {path: /etc/kubernetes/b, content: a}, {path: /etc/kubernetes/a/c, content: a}]", true, []wanted{{"files[2]", "there is another file in its place"}}},
	"file's owner":         {"files: [{path: /etc/kubernetes/a}, {path: /etc/kubernetes/b}, {path: /etc/kubernetes/c, owner: 'etcd:etcd'}]", true, []wanted{{"files[2].owner", "Files are root's"}}},
	"file's mode":          {"files: [{path: /etc/kubernetes/a, permissions: '4755'}]", true, []wanted{{"files[0].permissions", "four octal digits"}}},
	"file's encoding":      {"files: [{path: /etc/kubernetes/a, encoding: xz, content: a}]", true, []wanted{{"files[0].encoding", `"xz": want one of`}}},
	"no base64":            {"files: [{path: /etc/kubernetes/a, encoding: base64, content: '*'}]", true, []wanted{{"files[0].content", "illegal base64"}}},
	"no gzip":              {"files: [{path: /etc/kubernetes/a, encoding: gzip+base64, content: AAAA}]", true, []wanted{{"files[0].content", "EOF"}}},
	"bytes":                {"files: [{path: /etc/kubernetes/a, encoding: base64, content: /w==}]", true, []wanted{{"files[0].content", "want text in UTF-8"}}},
	"template":             {"{files: [{path: /etc/kubernetes/a, content: 'a {{ ds.meta_data.x }}'}], joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: v, value: '{{v1.x}}'}, {name: node-labels, value: 'a={{ ds.x }}'}]}}}", true, []wanted{{"files[0].content", "no cloud-init"}, {"joinConfiguration.nodeRegistration.kubeletExtraArgs[0].value", "no cloud-init"}, {"joinConfiguration.nodeRegistration.kubeletExtraArgs[1].value", "no cloud-init"}}},
	"no time":              {"ntp: {enabled: false}", true, []wanted{{"ntp.enabled", "always asks for the time"}}},
	"commands":             {"{preKubeadmCommands: [systemctl start x.service], postKubeadmCommands: [x], bootCommands: [x]}", true, []wanted{{"bootCommands", "hooks"}, {"postKubeadmCommands", "hooks"}, {"preKubeadmCommands", "hooks"}}},
	"control plane's":      {"{clusterConfiguration: {certificatesDir: /etc/kubernetes/pki}, initConfiguration: {nodeRegistration: {imagePullPolicy: Always}}, joinConfiguration: {controlPlane: {}}}", true, []wanted{{"clusterConfiguration", "leave it out for workers"}, {"initConfiguration", "leave it out for workers"}, {"joinConfiguration.controlPlane", "leave it out for workers"}}},
}

func TestRefusals(t *testing.T) {
	for name, c := range refusals {
		pool, got := Map(specOf(t, c.spec), !c.worker)
		same := slices.EqualFunc(got, c.want, func(r Refusal, w wanted) bool { return r.Field == w.field && strings.Contains(r.Reason, w.says) })
		if !same || !reflect.DeepEqual(pool, Pool{}) {
			t.Errorf("%s: got %q, %v, want %q", name, got, pool, c.want)
		}
	}
}

// A reason speaks of the reader's spec, not of our example of a document.
func TestReasonsNameNothingOfTheExample(t *testing.T) {
	for name, c := range refusals {
		_, got := Map(specOf(t, c.spec), !c.worker)
		for _, r := range got {
			for _, word := range []string{"pools[", "overrides[", "(pool)", "(first)", "render:", "cluster document:", "node config:", "member"} {
				if strings.Contains(r.Reason, word) {
					t.Errorf("%s: %q speaks of %q", name, r.Reason, word)
				}
			}
		}
	}
}

// What is not UTF-8 comes from programs alone: JSON has none of it.
func TestTextIsUTF8(t *testing.T) {
	spec := &bootstrapv1.KubeadmConfigSpec{}
	spec.JoinConfiguration.NodeRegistration.IgnorePreflightErrors = []string{"a", "\xff"}
	if _, got := Map(spec, false); len(got) != 1 || got[0].Field != "joinConfiguration.nodeRegistration.ignorePreflightErrors[1]" {
		t.Errorf("got %v", got)
	}
}

func TestFilesAreBounded(t *testing.T) {
	many := func(n int, f bootstrapv1.File) *bootstrapv1.KubeadmConfigSpec {
		spec := &bootstrapv1.KubeadmConfigSpec{}
		for i := range n {
			f.Path = fmt.Sprintf("/etc/kubernetes/file-%d", i)
			spec.Files = append(spec.Files, f)
		}
		return spec
	}
	bomb := bootstrapv1.File{Encoding: bootstrapv1.GzipBase64, Content: encoded(packed(t, make([]byte, 256<<20)))}
	large := func(n int) bootstrapv1.File { return bootstrapv1.File{Content: strings.Repeat("x", n)} }
	for name, c := range map[string]struct {
		spec *bootstrapv1.KubeadmConfigSpec
		want []wanted
	}{
		"as many as a node takes": {many(measurements.MaxFiles, large(1)), nil},
		"one more":                {many(measurements.MaxFiles+1, large(1)), []wanted{{"files", "33 files, a node takes at most 32"}}},
		"very many":               {many(100000, large(1)), []wanted{{"files", "100000 files"}}},
		"as large as may be":      {many(1, large(128<<10)), nil},
		"larger":                  {many(1, large(128<<10+1)), []wanted{{"files[0].content", "131073 bytes, want at most 131072"}}},
		"larger unpacked":         {many(1, bootstrapv1.File{Encoding: bootstrapv1.Gzip, Content: packed(t, make([]byte, 200<<10))}), []wanted{{"files[0].content", "204800 bytes"}}},
		"bomb":                    {many(1, bomb), []wanted{{"files[0].content", "unpacks to more than 1048576 bytes"}}},
		"cut gzip":                {many(1, bootstrapv1.File{Encoding: bootstrapv1.Gzip, Content: packed(t, []byte("a"))[:15]}), []wanted{{"files[0].content", "EOF"}}},
		"together too large":      {many(9, large(128<<10)), []wanted{{"files[7]", "cluster document: 10"}, {"files[8]", "at most 1048576"}}},
	} {
		start := time.Now()
		_, got := Map(c.spec, false)
		t.Logf("%s: %v, %v", name, time.Since(start).Round(time.Millisecond), got)
		if len(got) != len(c.want) || slices.ContainsFunc(c.want, func(w wanted) bool {
			return !slices.ContainsFunc(got, func(r Refusal) bool { return strings.HasPrefix(r.Field, w.field) && strings.Contains(r.Reason, w.says) })
		}) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// As much wrong as the API takes: Map ends, and with a bounded list.
func TestManyRefusalsEnd(t *testing.T) {
	spec := &bootstrapv1.KubeadmConfigSpec{}
	var wrong []bootstrapv1.Arg
	environment := make([]bootstrapv1.EnvVar, 100)
	for i := range 100 {
		wrong = append(wrong, bootstrapv1.Arg{Name: "emulated-version"})
		environment[i].Name, environment[i].Value = "A", strings.Repeat("x", 1000)
	}
	c := &spec.ClusterConfiguration
	c.APIServer.ExtraArgs, c.ControllerManager.ExtraArgs, c.Scheduler.ExtraArgs = wrong, wrong, wrong
	c.APIServer.ExtraEnvs, c.ControllerManager.ExtraEnvs, c.Scheduler.ExtraEnvs = &environment, &environment, &environment
	start := time.Now()
	_, got := Map(spec, true)
	t.Logf("%d refusals in %v", len(got), time.Since(start).Round(time.Millisecond))
	if len(got) != maxRefusals {
		t.Errorf("%d refusals, want %d", len(got), maxRefusals)
	}
}

func BenchmarkMap(b *testing.B) {
	spec := specOf(b, ordinary)
	for b.Loop() {
		if _, got := Map(spec, true); len(got) > 0 {
			b.Fatal(got)
		}
	}
}
