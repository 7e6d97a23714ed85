package kubeadm

import (
	"strings"
	"testing"
)

func TestRestoreReadsTheMember(t *testing.T) {
	for documents, want := range map[string]string{
		"kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: '2001:db8::7'}\n---\nkind: ClusterConfiguration\netcd: {local: {dataDir: /var/lib/etcd/, extraArgs: {quota-backend-bytes: \"1\"}}}": "two=https://[2001:db8::7]:2380",
		"kind: ClusterConfiguration\n--- # next\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.7}\n":                                                                               "two=https://192.0.2.7:2380",
		"kind: InitConfiguration\nnodeRegistration: {name: one}\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.7}\n---\nkind: X\n---\nkind: ClusterConfiguration\n":                                         "one=https://192.0.2.7:2380",
	} {
		environment, err := Restoration{Documents: []byte(documents), NodeName: "two"}.Environment("token")
		name, peer, _ := strings.Cut(want, "=")
		if err != nil || !strings.HasPrefix(string(environment), "HULLMARK_ETCD_NAME="+name+"\nHULLMARK_ETCD_PEER="+peer+"\n") {
			t.Errorf("%s: %s, %v", documents, environment, err)
		}
	}
	const first, cluster = "kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.7}\n", "---\nkind: ClusterConfiguration\n"
	for name, documents := range map[string]string{
		"no document":       "",
		"no init":           cluster,
		"no cluster":        first,
		"no address":        "kind: InitConfiguration\n" + cluster,
		"loopback":          "kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 127.0.0.1}\n" + cluster,
		"a zone":            "kind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 'fe80::1%eth0'}\n" + cluster,
		"a name of lines":   first + "nodeRegistration: {name: \"a\\nB=c\"}\n" + cluster,
		"no YAML":           "a: b: c",
		"an external etcd":  first + cluster + "etcd: {external: {endpoints: [\"https://192.0.2.9:2379\"]}}",
		"other data":        first + cluster + "etcd: {local: {dataDir: /var/lib/etcd-data}}",
		"other data by arg": first + cluster + "etcd: {local: {extraArgs: [{name: data-dir, value: /x}]}}",
		"v1beta3 arguments": first + cluster + "etcd: {local: {extraArgs: {data-dir: /x}}}",
		"no etcd":           first + "skipPhases: [addon/kube-proxy, etcd/local]\n" + cluster,
	} {
		if err := (Restoration{Documents: []byte(documents), NodeName: "two"}).Check(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
