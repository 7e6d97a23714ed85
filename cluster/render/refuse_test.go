package render

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// refusal is a change of the rich document, and what is said of it.
type refusal struct{ old, new, says string }

// override is an override of the whole cluster at the end of the document.
func override(api, kind, field string) string {
	return "serializeImagePulls: false\n- apiVersion: " + api + "\n  kind: " + kind + "\n  " + field
}

// The API groups of the documents that an operator may override.
var kubeadmAPI, kubeletAPI = kubeadm.Kinds["ClusterConfiguration"].API, kubeadm.Kinds["KubeletConfiguration"].API

var refusals = map[string]refusal{
	"unknown top-level field":  {"timeServers:", "timeservers:", `line 16: unknown field "timeservers"`},
	"unknown inner field":      {"  role: worker\n  stateDisk: {serial: state}\n  members:", "  role: worker\n  colour: red\n  stateDisk: {serial: state}\n  members:", `line 70: unknown field "pools[1].colour"`},
	"wrong case":               {"podSubnet:", "podsubnet:", `unknown field "network.podsubnet"`},
	"doubled field":            {"name: prod\n", "name: prod\nname: test\n", `key "name" already set`},
	"two documents":            {"network:", "---\nnetwork:", "more than one YAML document"},
	"wrong type":               {"kubernetesVersion: v1.36.3", "kubernetesVersion: [v1.36.3]", "cannot unmarshal array"},
	"other schema":             {"hullmark.cluster/v1", "hullmark.cluster/v2", `schema: "hullmark.cluster/v2", want "hullmark.cluster/v1"`},
	"no cluster root":          {"clusterRoot: 5f2b9c1d8e7a6f504132435465768798a9bacbdcedfe0f1021324354657687a9\n", "", "clusterRoot: missing"},
	"short cluster root":       {"clusterRoot: 5f2b", "clusterRoot: 2b", "cluster root: want 64 hexadecimal digits"},
	"another version":          {"v1.36.3", "v1.35.0", `kubernetesVersion: "v1.35.0", but the image carries v1.36.3`},
	"name with a space":        {"name: prod", "name: my prod", `name: "my prod": want a DNS label`},
	"unknown profile":          {"name: prod\n", "name: prod\nprofile: fast\n", `profile "fast": want slow or none`},
	"endpoint without a port":  {"endpoint: api.prod.example:6443", "endpoint: api.prod.example", `controlPlane.endpoint: "api.prod.example": want HOST:PORT`},
	"endpoint with a zone":     {"endpoint: api.prod.example:6443", `endpoint: "[fe80::1%e]:6443"`, "want HOST:PORT"},
	"no advertise address":     {"  advertiseAddress: 192.0.2.11", "  #", `controlPlane.advertiseAddress: "": want the first node's address`},
	"SAN with a port":          {"sans: [api.prod.example", "sans: [\"api.prod.example:1\"", `controlPlane.sans: "api.prod.example:1": want a host name`},
	"join endpoint":            {"\"192.0.2.11:7444\"]", "nowhere]", `node config: endpoints: "nowhere": want HOST:PORT`},
	"time server":              {"[time.prod.example]", `["a b"]`, `timeServers: "a b" is neither`},
	"pod subnet":               {"podSubnet: 10.64.0.0/14", "podSubnet: 10.64.0.0", "network.podSubnet: "},
	"service subnet":           {"serviceSubnet: 10.68.0.0/16", "serviceSubnet: fd00::/112", "want networks of the same families in the same order"},
	"overlapping subnets":      {"serviceSubnet: 10.68.0.0/16", "serviceSubnet: 10.65.0.0/16", "service subnet 10.65.0.0/16 overlaps pod subnet 10.64.0.0/14"},
	"subnets of one family":    {"podSubnet: 10.64.0.0/14", "podSubnet: 10.64.0.0/14,10.72.0.0/16", "network.podSubnet: "},
	"a family more":            {"podSubnet: 10.64.0.0/14", "podSubnet: 10.64.0.0/14,fd00::/56", "want networks of the same families in the same order"},
	"node in the pods' net":    {"podSubnet: 10.64.0.0/14", "podSubnet: 192.0.2.0/24", "storage-2: address 192.0.2.22: it is of the pods' network 192.0.2.0/24"},
	"member in the services'":  {"serviceSubnet: 10.68.0.0/16", "serviceSubnet: 192.0.2.16/28", "pools[1] (storage): storage-2: address 192.0.2.22: it is of the services' network 192.0.2.16/28"},
	"no control plane":         {"role: control-plane", "role: worker", "no pool of role control-plane has a member"},
	"unknown role":             {"- name: later                         # no members yet\n  role: worker", "- name: later\n  role: etcd", `pools[2] (later): role "etcd": want control-plane or worker`},
	"pool without a name":      {"- name: later ", "- name: \"\" #", `pools[2]: name "": want a DNS label`},
	"pool named twice":         {"- name: later ", "- name: storage #", `pools[2]: name "storage": want a DNS label that no other pool has`},
	"no state disk":            {"stateDisk: {path: /dev/disk/by-id/state}", "stateDisk: {}", "pools[0] (control): node config: stateDisk: exactly one of serial and path"},
	"add-on named twice":       {"- name: boards", "- name: cert-manager", `addons[1]: name "cert-manager": want a DNS label that no other add-on has`},
	"add-on of Hullmark's":     {"- name: boards", "- name: flannel", `addons[1]: name "flannel": that is one of Hullmark's own`},
	"add-on, long name":        {"- name: cert-manager", "- name: " + strings.Repeat("a", 54), "at most 53 characters"},
	"add-on's namespace":       {"namespace: boards", "namespace: Boards", `addons[1] (boards): namespace "Boards": want a DNS label`},
	"add-on of nothing":        {"  manifests: [boards/, extra.yaml]\n", "", "addons[1] (boards): want either chart or manifests"},
	"add-on of both":           {"manifests: [boards/, extra.yaml]", "manifests: [boards/]\n  chart: x", "addons[1] (boards): want either chart or manifests"},
	"manifests with values":    {"manifests: [boards/, extra.yaml]", "manifests: [boards/]\n  values: {a: 1}", "sha256, values and valuesFiles are a chart's"},
	"manifest without a name":  {"[boards/, extra.yaml]", `[boards/, ""]`, "want at most 64 files, each with a name"},
	"chart without a digest":   {"  sha256: " + strings.Repeat("d4", 32) + "\n", "", `addons[0] (cert-manager): sha256 "": want that of the chart's archive`},
	"chart, short digest":      {strings.Repeat("d4", 32), "d4", `sha256 "d4": want that`},
	"chart, capitals":          {strings.Repeat("d4", 32), strings.Repeat("D4", 32), "in lower case"},
	"folder with a digest":     {"oci://registry.example/charts/cert-manager:1.18.2", "charts/cert-manager", "the chart charts/cert-manager is a folder, which has none"},
	"add-on's unknown field":   {"valuesFiles:", "valueFiles:", `unknown field "addons[0].valueFiles"`},
	"member's name":            {"name: storage-2", "name: ../x", `pools[1] (storage): members[0]: name "../x": want a DNS label`},
	"member named twice":       {"name: storage-2", "name: cp-1", "members: cp-1"},
	"machine named twice":      {strings.Repeat("b2", 32), strings.Repeat("c3", 32), "identity or name has a rule already"},
	"member's address":         {"192.0.2.22/24", "192.0.2.22", "members[0] (storage-2): node config: addresses"},
	"gateway":                  {"gateway: 192.0.2.1\n", "gateway: gw\n", `gateway: "gw" is no IP address`},
	"label of Kubernetes":      {"example.com/disks", "node-role.kubernetes.io/disks", "labels: node-role.kubernetes.io/disks: a kubelet may not set it"},
	"label for its own node":   {"example.com/disks", "node-restriction.kubernetes.io/x", "a kubelet may not set it"},
	"label's name":             {"example.com/disks", "example.com/a=b", `labels: "example.com/a=b": want a qualified name`},
	"label's value":            {"disks: many", "disks: \"a,b=c\"", `example.com/disks: value "a,b=c"`},
	"taint's effect":           {"effect: NoSchedule", "effect: Never", `taints[0]: effect "Never": want NoSchedule`},
	"taint's key":              {"key: example.com/storage", "key: \"\"", `taints[0]: ""="only": want a qualified name`},
	"file elsewhere":           {"path: /etc/kubernetes/audit.yaml", "path: /etc/passwd", `files: "/etc/passwd": want a clean path below /etc/kubernetes/ or /var/lib/hullmark/`},
	"file above":               {"path: /etc/kubernetes/audit.yaml", "path: /etc/kubernetes/../passwd", "want a clean path"},
	"root itself":              {"path: /etc/kubernetes/audit.yaml", "path: /etc/kubernetes/", "want a clean path"},
	"file of kubeadm":          {"path: /etc/kubernetes/audit.yaml", "path: /etc/kubernetes/pki/ca.key", "it is what Hullmark or kubeadm writes"},
	"file of Hullmark":         {"path: /etc/kubernetes/audit.yaml", "path: /var/lib/hullmark/policy", "it is what Hullmark or kubeadm writes"},
	"file in a file":           {"path: /etc/kubernetes/audit.yaml", "path: /etc/kubernetes/storage", "there is another file in its place"},
	"file twice":               {"path: /etc/kubernetes/storage/topology.yaml", "path: /etc/kubernetes/audit.yaml", "pools[1] (storage): files: /etc/kubernetes/audit.yaml: there is another file"},
	"mode as a number":         {`mode: "0600"`, "mode: 0600", "cannot unmarshal number"},
	"mode with more":           {`mode: "0600"`, `mode: "4755"`, `mode "4755": want four octal digits`},
	"file of the pool's own":   {"path: /etc/kubernetes/audit.yaml", "path: /var/lib/hullmark/pool/registries/docker.io/hosts.toml", "what is below /var/lib/hullmark/pool/ comes from registries, journal and timeServers"},
	"secret for everybody":     {"    rules:\n", "    x: hullmark-encrypted:1:/etc/kubernetes/audit.yaml:" + strings.Repeat("A", 40) + "\n    rules:\n", `mode "0644": a file that holds a secret is its owner's alone`},
	"secret of another file":   {"      rack: 7\n", "      rack: hullmark-encrypted:1:/etc/kubernetes/audit.yaml:" + strings.Repeat("A", 40) + "\n", "its secret was encrypted for /etc/kubernetes/audit.yaml; encrypt it for this place"},
	"secret that is damaged":   {"      rack: 7\n", "      rack: hullmark-encrypted:1:/etc/kubernetes/storage/topology.yaml:AA\n", "want 1 to 65536 bytes in base64"},
	"registry by a path":       {"host: docker.io", "host: docker.io/library", "registries[0] (docker.io/library): host: want what images' names begin with"},
	"registry named twice":     {"host: registry.prod.example:5000 ", "host: docker.io ", "registries[1]: docker.io: named twice"},
	"mirror without TLS":       {"url: https://registry.prod", "url: http://registry.prod", "mirrors[0] (http://registry.prod.example:5000): url: want https://HOST[:PORT]"},
	"mirror with a user":       {"url: https://registry.prod", "url: https://u:p@registry.prod", "url: want https://HOST[:PORT]"},
	"mirror with a quote":      {"url: https://registry.prod.example:5000\n", "url: 'https://registry.prod.example:5000/\"]'\n", "url: want https://HOST[:PORT]"},
	"mirror's unknown field":   {"  upstream: true ", "  skip_verify: true #", `unknown field "registries[0].skip_verify"`},
	"credentials in clear":     {"credentials: hullmark-encrypted:1:", "credentials: u:p #", "credentials: want the line that hullmark cluster encrypt prints"},
	"credentials of another":   {"credentials: hullmark-encrypted:1:https://mirror.prod", "credentials: hullmark-encrypted:1:https://evil.prod", "its secret was encrypted for https://evil.prod.example:5000/v2/hub"},
	"collector without a port": {"collector: logs.prod.example:6514", "collector: logs.prod.example", "journal: collector: \"logs.prod.example\": want HOST:PORT"},
	"collector by any name":    {"collector: logs.prod.example:6514", "collector: logs.prod.example:6514\n  name: \"*.example\"", "journal: name: \"*.example\": want the DNS name"},
	"collector by nobody":      {"collector: logs.prod.example:6514\n  ca: |", "collector: logs.prod.example:6514\n  ca: x\n  certificate: |", "journal: ca:"},
	"collector's key in clear": {"collector: logs.prod.example:6514\n  ca: |", "collector: logs.prod.example:6514\n  key: secret\n  ca: |", "journal: certificate:"},
	"hook with a path":         {"site-metrics.service", "../evil.service", `hooks: "../evil.service": want the name of a service`},
	"hook of another kind":     {"site-metrics.service", "site.timer", "want the name of a service"},
	"hook of Hullmark":         {"site-metrics.service", "hullmark-kubeadm.service", "Hullmark starts it itself"},
	"hook twice":               {"[site-metrics.service]", "[a.service, a.service]", "hooks: a.service: named twice"},

	"override of another kind":   {"serializeImagePulls: false", override("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration", "mode: nftables"), "overrides[3]: kubeproxy.config.k8s.io/v1alpha1 KubeProxyConfiguration: want kubeadm.k8s.io/v1beta4 ClusterConfiguration, or"},
	"override of another API":    {"kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1", "overrides[2]: kubelet.config.k8s.io/v1 KubeletConfiguration: want"},
	"override twice":             {"serializeImagePulls: false", override(kubeletAPI, "KubeletConfiguration", "maxPods: 5"), "overrides[3]: a second KubeletConfiguration"},
	"join for the whole cluster": {"serializeImagePulls: false", override(kubeadmAPI, "JoinConfiguration", "dryRun: true"), "overrides[3]: kubeadm.k8s.io/v1beta4 JoinConfiguration: want"},
	"cluster for a pool":         {"kind: JoinConfiguration", "kind: ClusterConfiguration", "pools[1] (storage): overrides[0]: kubeadm.k8s.io/v1beta4 ClusterConfiguration: want kubeadm.k8s.io/v1beta4 JoinConfiguration"},
}

// ownedFields are overrides of fields that are not the operator's, by kind, with what is said.
var ownedFields = map[string]map[string]string{
	"ClusterConfiguration": {
		"apiServer: {extraArgs: [{name: runtime-config, value: admissionregistration.k8s.io/v1=false}]}": "runtime-config: admissionregistration.k8s.io/v1: want it true",
		"apiServer: {extraArgs: [{name: requestheader-client-ca-file, value: /x}]}":                      "requestheader-client-ca-file: Hullmark sets it itself",
		"certificatesDir: /x":                                  "certificatesDir: Hullmark sets it itself; leave it out",
		"kubernetesVersion: v1.30.0":                           "kubernetesVersion: Hullmark sets it itself; use kubernetesVersion",
		"imageRepository: registry.example":                    "imageRepository: Hullmark sets it itself",
		"controlPlaneEndpoint: other:6443":                     "controlPlaneEndpoint: Hullmark sets it itself; use controlPlane.endpoint",
		"networking: {podSubnet: 10.1.0.0/16}":                 "networking.podSubnet: Hullmark sets it itself; use network.podSubnet",
		"networking: none":                                     "networking: want an object",
		"networking:":                                          "networking: it has no value",
		"etcd: {external: {endpoints: [a]}}":                   "etcd.external: Hullmark sets it itself",
		"etcd: {local: {dataDir: /x}}":                         "etcd.local.dataDir: Hullmark sets it itself",
		"etcd: []":                                             "etcd: want an object",
		"apiServer: {certSANs: [x]}":                           "apiServer.certSANs: Hullmark sets it itself; use controlPlane.sans",
		"apiServer: {extraArgs: {v: 4}}":                       "apiServer.extraArgs: want a list",
		"apiServer: {extraArgs: [v]}":                          "apiServer.extraArgs[0]: want an object with name and value",
		"apiServer: {extraArgs: [{name: V, value: '4'}]}":      "the name of lower-case letters",
		"apiServer: {extraArgs: [{name: authorization_mode}]}": "apiServer.extraArgs: authorization-mode: Hullmark sets it itself",
		"controllerManager: {extraArgs: [{name: cluster-signing-duration, value: 8760h}]}":                       "cluster-signing-duration: Hullmark sets it itself",
		"controllerManager: {extraArgs: [{name: flex-volume-plugin-dir, value: /x}]}":                            "flex-volume-plugin-dir: Hullmark sets it itself",
		"controllerManager: {extraArgs: [{name: cluster-signing-cert-file, value: /etc/kubernetes/pki/ca.crt}]}": "cluster-signing-cert-file: Hullmark sets it itself",
		"controllerManager: {extraArgs: [{name: cluster_signing_key_file, value: /etc/kubernetes/pki/ca.key}]}":  "cluster-signing-key-file: Hullmark sets it itself",
		"controllerManager: {extraArgs: [{name: cluster-signing-legacy-unknown-cert-file, value: /x}]}":          "cluster-signing-legacy-unknown-cert-file: Hullmark sets it itself",
		"controllerManager: {extraArgs: [{name: cluster-signing-kubelet-serving-cert-file, value: /x}]}":         "cluster-signing-kubelet-serving-cert-file: Hullmark sets it itself",
		"apiServer: {extraArgs: [{name: kubelet-certificate-authority, value: ''}]}":                             "kubelet-certificate-authority: Hullmark sets it itself",
		"dns:": "dns: it has no value",
	},
	"InitConfiguration": {
		"nodeRegistration: {name: x}":                                 "nodeRegistration.name: Hullmark sets it itself; use the member's name",
		"nodeRegistration: {criSocket: x}":                            "nodeRegistration.criSocket: Hullmark sets it itself",
		"nodeRegistration: {taints: [{key: a, effect: NoSchedule}]}":  "use the pool's taints",
		"nodeRegistration: {ignorePreflightErrors: all}":              "nodeRegistration.ignorePreflightErrors: want a list",
		"nodeRegistration: {kubeletExtraArgs: [{name: node-labels}]}": "kubeletExtraArgs: node-labels: Hullmark sets it itself; use the pool's labels",
		"patches: {directory: /x}":                                    "patches: Hullmark sets it itself",
		"patches:":                                                    "patches: Hullmark sets it itself",
		"skipPhases: [preflight]":                                     "skipPhases: Hullmark sets it itself",
		"localAPIEndpoint: {bindPort: 1}":                             "localAPIEndpoint: Hullmark sets it itself; use controlPlane.advertiseAddress",
	},
	"KubeletConfiguration": {
		"serverTLSBootstrap: false":                    "serverTLSBootstrap: Hullmark sets it itself",
		"rotateCertificates: false":                    "rotateCertificates: Hullmark sets it itself",
		"cgroupDriver: cgroupfs":                       "cgroupDriver: Hullmark sets it itself",
		"authentication: {anonymous: {enabled: true}}": "authentication.anonymous: Hullmark sets it itself",
		"authorization: {mode: AlwaysAllow}":           "authorization.mode: Hullmark sets it itself",
	},
	"JoinConfiguration": {
		"discovery: {tlsBootstrapToken: x}": "discovery: Hullmark sets it itself",
		"caCertPath: /x":                    "caCertPath: Hullmark sets it itself",
		"controlPlane: {certificateKey: x}": "controlPlane: Hullmark sets it itself; use the pool's role",
		"dryRun: true":                      "dryRun: Hullmark sets it itself",
	},
}

// refused returns what is said of a document, by Parse or by Render.
func refused(text []byte) error {
	document, err := Parse(text)
	if err != nil {
		return err
	}
	_, err = Render(document, measurements.Policy{})
	return err
}

func TestRefusals(t *testing.T) {
	rich := sample(t, "rich")
	if err := refused(rich); err != nil {
		t.Fatal(err)
	}
	for name, r := range refusals {
		if !bytes.Contains(rich, []byte(r.old)) {
			t.Errorf("%s: the document lacks %q", name, r.old)
			continue
		}
		if err := refused(bytes.Replace(rich, []byte(r.old), []byte(r.new), 1)); err == nil || !strings.Contains(err.Error(), r.says) {
			t.Errorf("%s: got %v, want %q", name, err, r.says)
		}
	}
}

func TestOwnedFieldsAreRefused(t *testing.T) {
	for kind, fields := range ownedFields {
		for field, says := range fields {
			text := with(t, kind, field)
			if err := refused(text); err == nil || !strings.Contains(err.Error(), "overrides[0] ("+kind+"): ") || !strings.Contains(err.Error(), says) {
				t.Errorf("%s %s: got %v, want %q", kind, field, err, says)
			}
		}
	}
}

// TestFieldsAsTheyAre accepts an override that says what Hullmark says, and free fields beside owned ones.
func TestFieldsAsTheyAre(t *testing.T) {
	for kind, fields := range map[string][]string{
		"ClusterConfiguration": {"kubernetesVersion: v1.36.3", "imageRepository: localhost/hullmark", "networking: {podSubnet: 10.244.0.0/16}", "etcd: {local: {extraArgs: [{name: heartbeat-interval, value: '200'}]}}"},
		"InitConfiguration":    {"patches: {directory: /usr/lib/kubernetes/patches}", "nodeRegistration: {name: control-plane-1, imagePullSerial: false}", "localAPIEndpoint: {advertiseAddress: 10.0.2.15, bindPort: 6443}"},
		"KubeletConfiguration": {"cgroupDriver: systemd", "authentication: {webhook: {cacheTTL: 5m}}"},
		"JoinConfiguration":    {"nodeRegistration: {criSocket: 'unix:///run/containerd/containerd.sock'}", "timeouts: {discovery: 9m}"},
	} {
		for _, field := range fields {
			if err := refused(with(t, kind, field)); err != nil {
				t.Errorf("%s %s: %v", kind, field, err)
			}
		}
	}
}

// with returns the small document with one field overridden.
func with(t *testing.T, kind, field string) []byte {
	t.Helper()
	indent, api := "", kubeadmAPI
	if kind == "JoinConfiguration" {
		indent = "  "
	}
	if kind == "KubeletConfiguration" {
		api = kubeletAPI
	}
	text := "overrides:\n- apiVersion: " + api + "\n  kind: " + kind + "\n  " + field + "\n"
	return append(sample(t, "small"), strings.ReplaceAll(indent+text, "\n", "\n"+indent)...)
}

func TestLimits(t *testing.T) {
	small := string(sample(t, "small"))
	long := small + "hooks: [" + strings.Repeat("a.service, ", measurements.MaxHooks+1) + "]\n"
	if err := refused([]byte(long)); err == nil || !strings.Contains(err.Error(), "want at most 32 and 16") {
		t.Errorf("hooks: got %v", err)
	}
	if err := refused([]byte(small + "#" + strings.Repeat("x", MaxCluster))); err == nil || !strings.Contains(err.Error(), "at most 1048576 are allowed") {
		t.Errorf("a long document: got %v", err)
	}
	aliases := small + "files:\n- {path: /etc/kubernetes/0, content: &x " + strings.Repeat("x", MaxCluster/4) + "}\n" +
		strings.Repeat("- {path: /etc/kubernetes/1, content: *x}\n", 4)
	if err := refused([]byte(aliases)); err == nil || !strings.Contains(err.Error(), "with its aliases written out") {
		t.Errorf("aliases: got %v", err)
	}
	if err := refused(nil); err == nil || !strings.Contains(err.Error(), "it is empty") {
		t.Errorf("nothing: got %v", err)
	}
}
