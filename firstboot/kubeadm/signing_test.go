package kubeadm

import (
	"strings"
	"testing"
)

// An operator's own documents keep kubelets' certificates apart, as ours do.
func TestCheckSigning(t *testing.T) {
	ours, err := InitDocuments(params())
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckSigning(ours); err != nil {
		t.Errorf("our own documents: %v", err)
	}
	free := strings.Replace(string(ours), "controllerManager:\n  extraArgs:\n", "controllerManager:\n  extraArgs:\n  - name: v\n    value: \"4\"\n", 1)
	if err := CheckSigning([]byte(free)); err != nil || free == string(ours) {
		t.Errorf("with an argument of the operator's: %v", err)
	}
	const again = "controllerManager:\n  extraArgs:\n"
	for name, c := range map[string]struct{ old, new, says string }{
		"the general pair":        {"cluster-signing-cert-file\n    value: \"\"", "cluster-signing-cert-file\n    value: /etc/kubernetes/pki/ca.crt", `cluster-signing-cert-file: want "", got "/etc/kubernetes/pki/ca.crt"`},
		"kubeadm's general pair":  {"  - name: cluster-signing-cert-file\n    value: \"\"\n", "", `cluster-signing-cert-file is missing: want ""`},
		"the pair given twice":    {again, again + "  - name: cluster_signing_key_file\n    value: /x\n", `cluster_signing_key_file: want "", got "/x"`},
		"the cluster's CA":        {"kubelet-serving-ca.crt", "ca.crt", "cluster-signing-kubelet-serving-cert-file: want"},
		"the signer of anything":  {again, again + "  - name: cluster-signing-legacy-unknown-cert-file\n    value: /x\n", "legacy-unknown-cert-file: leave it out"},
		"unverified kubelets":     {"  - name: kubelet-certificate-authority\n    value: /etc/kubernetes/pki/kubelet-serving-trust.crt\n", "", "kubelet-certificate-authority is missing"},
		"kubelets of any CA":      {"value: /etc/kubernetes/pki/kubelet-serving-trust.crt", "value: /etc/kubernetes/pki/ca.crt", "kubelet-certificate-authority: want"},
		"no ClusterConfiguration": {"kind: ClusterConfiguration", "kind: Other", "there is no ClusterConfiguration"},
	} {
		changed := strings.Replace(string(ours), c.old, c.new, 1)
		if err := CheckSigning([]byte(changed)); changed == string(ours) || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
