package kubeadm

import (
	"strings"
	"testing"
)

// An operator's own documents hold to what Hullmark relies on, as ours do; the rest is the operator's.
func TestCheckDocuments(t *testing.T) {
	ours := ownDocuments(t, Normal)
	const manager, server, kubelet, registration = "controllerManager:\n  extraArgs:\n", "apiServer:\n  extraArgs:\n", "kind: KubeletConfiguration\n", "nodeRegistration:\n"
	life := "  - name: cluster-signing-duration\n    value: " + CertificateLife.String() + "\n"
	argument := func(name, value string) string { return "  - name: " + name + "\n    value: \"" + value + "\"\n" }
	for name, c := range map[string]struct{ old, new string }{
		"our own":              {"", ""},
		"an argument":          {manager, manager + argument("v", "4")},
		"shorter certificates": {CertificateLife.String(), "24h"},
		"another API":          {server, server + argument("runtime-config", "resource.k8s.io/v1beta1=true,api/ga")},
		"its own name":         {"name: " + params().NodeName, "name: another"},
		"its own networks":     {"serviceSubnet: ", "serviceSubnet: 10.32.0.0/16 #"},
		"a label":              {registration, registration + "  kubeletExtraArgs:\n  - {name: node-labels, value: example.com/a=b}\n"},
		"more pods":            {kubelet, kubelet + "maxPods: 200\n"},
		"another phase less":   {"- bootstrap-token\n", "- bootstrap-token\n- addon/coredns\n"},
		"kubeadm's default":    {"kind: ClusterConfiguration\n", "kind: ClusterConfiguration\ncertificatesDir: /etc/kubernetes/pki\nproxy: {}\n"},
	} {
		changed := strings.Replace(ours, c.old, c.new, 1)
		if err := CheckDocuments([]byte(changed)); err != nil || changed == ours && c.old != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct{ old, new, says string }{
		"the general pair":         {"cluster-signing-cert-file\n    value: \"\"", "cluster-signing-cert-file\n    value: /etc/kubernetes/pki/ca.crt", `cluster-signing-cert-file: Hullmark relies on "", got "/etc/kubernetes/pki/ca.crt"`},
		"kubeadm's general pair":   {"  - name: cluster-signing-cert-file\n    value: \"\"\n", "", `cluster-signing-cert-file: it is missing: Hullmark relies on ""`},
		"the pair given twice":     {manager, manager + argument("cluster_signing_key_file", "/x"), `cluster-signing-key-file: Hullmark relies on "", got "/x"`},
		"the cluster's CA":         {"kubelet-serving-ca.crt", "ca.crt", "cluster-signing-kubelet-serving-cert-file: Hullmark relies on"},
		"kubeadm's file of two":    {"kubernetes-signing-ca.crt", "ca.crt", "cluster-signing-kube-apiserver-client-cert-file: Hullmark relies on"},
		"the signer of anything":   {manager, manager + argument("cluster-signing-legacy-unknown-cert-file", "/x"), "legacy-unknown-cert-file: leave it out"},
		"unverified kubelets":      {"  - name: kubelet-certificate-authority\n    value: /etc/kubernetes/pki/kubelet-serving-trust.crt\n", "", "kubelet-certificate-authority: it is missing"},
		"kubelets of any CA":       {"value: /etc/kubernetes/pki/kubelet-serving-trust.crt", "value: /etc/kubernetes/pki/ca.crt", "kubelet-certificate-authority: Hullmark relies on"},
		"a name with a value":      {server, server + argument("kubelet-certificate-authority=/etc/kubernetes/pki/ca.crt", ""), "apiServer.extraArgs: [0]: want an object with name and value"},
		"a name in capitals":       {server, server + argument("Authorization-mode", "AlwaysAllow"), "the name of lower-case letters"},
		"a year by default":        {life, "", "cluster-signing-duration: it is missing"},
		"ten years":                {CertificateLife.String(), "87600h", "cluster-signing-duration: want a duration of at most 72h0m0s"},
		"ten years at last":        {life, life + argument("cluster_signing-duration", "87600h"), "cluster-signing-duration: want a duration of at most 72h0m0s"},
		"no time at all":           {CertificateLife.String(), "0s", "cluster-signing-duration: want a duration"},
		"no admission policies":    {server, server + argument("disable-admission-plugins", "ValidatingAdmissionPolicy,NodeRestriction"), "disable-admission-plugins: leave it out"},
		"no API of policies":       {server, server + argument("runtime-config", "api/ga,admissionregistration.k8s.io/v1=false"), "runtime-config: admissionregistration.k8s.io/v1: want it true"},
		"no NodeRestriction":       {server, server + argument("enable-admission-plugins", "DefaultIngressClass"), "enable-admission-plugins: leave it out"},
		"another authorizer":       {server, server + argument("authorization-mode", "AlwaysAllow"), "authorization-mode: leave it out"},
		"whom anybody stands for":  {server, server + argument("requestheader-client-ca-file", "/etc/kubernetes/pki/ca.crt"), "requestheader-client-ca-file: leave it out"},
		"the controller approves":  {",-certificatesigningrequest-approving-controller", "", "controllers: Hullmark relies on"},
		"kubeadm's approvals":      {"- bootstrap-token\n", "", "skipPhases: Hullmark relies on"},
		"no patches":               {"directory: " + PatchesDir, "directory: /x", "patches: Hullmark relies on"},
		"kubelets sign themselves": {"serverTLSBootstrap: true", "serverTLSBootstrap: false", "serverTLSBootstrap: Hullmark relies on true, got false"},
		"kubelets let anybody in":  {kubelet, kubelet + "authentication: {anonymous: {enabled: true}}\n", "authentication.anonymous: leave it out"},
		"the kubelet's other file": {registration, registration + "  kubeletExtraArgs:\n  - {name: config, value: /x}\n", "config: leave it out"},
		"arguments as an object":   {server, "apiServer:\n  extraArgs: {v: '4'}\n  spare:\n", "apiServer.extraArgs: want a list"},
		"in capitals":              {server, "apiserver:\n  extraArgs:\n", "kubelet-certificate-authority: it is missing"},
		"another API's document":   {kubeadmAPI + "\nclusterName", "kubeadm.k8s.io/v1beta3\nclusterName", "apiVersion: want kubeadm.k8s.io/v1beta4"},
		"no ClusterConfiguration":  {"kind: ClusterConfiguration", "kind: Other", "there is no ClusterConfiguration"},
		"no KubeletConfiguration":  {kubelet, "kind: Other\n", "there is no KubeletConfiguration"},
	} {
		changed := strings.Replace(ours, c.old, c.new, 1)
		if err := CheckDocuments([]byte(changed)); changed == ours || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if err := CheckDocuments([]byte(ownDocuments(t, Slow))); err != nil {
		t.Errorf("the profile slow: %v", err)
	}
}

// A cluster whose controller manager signs by kubeadm's own file, which may have two certificates, is told from ours, and so is one that
// signs by several.
func TestSignsApart(t *testing.T) {
	var ours string
	for part := range strings.SplitSeq(ownDocuments(t, Normal), "---\n") {
		if strings.Contains(part, "kind: ClusterConfiguration\n") {
			ours = part
		}
	}
	const manager, file = "controllerManager:\n  extraArgs:\n", "kubernetes-signing-ca.crt"
	for name, c := range map[string]struct {
		stored string
		apart  bool
	}{
		"ours":            {ours, true},
		"of before":       {strings.ReplaceAll(ours, file, "ca.crt"), false},
		"one of before":   {strings.Replace(ours, file, "ca.crt", 1), false},
		"said twice":      {strings.Replace(ours, manager, manager+"  - {name: cluster-signing-kubelet-client-cert-file, value: /etc/kubernetes/pki/ca.crt}\n", 1), false},
		"nothing is said": {"kind: ClusterConfiguration\n", false},
	} {
		if apart, err := SignsApart([]byte(c.stored)); apart != c.apart || err != nil {
			t.Errorf("%s: %t, %v", name, apart, err)
		}
	}
	for _, broken := range []string{"- a", "controllerManager: {extraArgs: {v: '4'}}"} {
		if _, err := SignsApart([]byte(broken)); err == nil {
			t.Errorf("%s is read", broken)
		}
	}
}

func ownDocuments(t *testing.T, profile Profile) string {
	t.Helper()
	p := params()
	p.Profile, p.ClusterName = profile, "prod"
	documents, err := InitDocuments(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(documents)
}
