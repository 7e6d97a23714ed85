//go:build long

package build

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// kubernetesBundle builds the bundle, or takes it from the store that builds use.
func kubernetesBundle(t *testing.T) string {
	t.Helper()
	o, l, _ := settled(t)
	root, _, err := Kubernetes(t.Context(), o, l)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func clusterParams() kubeadm.Params {
	return kubeadm.Params{
		NodeName:         "one",
		AdvertiseAddress: netip.MustParseAddr("10.0.2.15"),
		ServiceSubnet:    kubeadm.MustParseSubnets("10.96.0.0/12"),
		PodSubnet:        kubeadm.MustParseSubnets("10.244.0.0/16"),
		SANs:             []string{"127.0.0.1"},
		Workloads:        true,
	}
}

func TestKubernetesProgramsKnowTheirVersion(t *testing.T) {
	bin := filepath.Join(kubernetesBundle(t), "usr", "bin")
	for _, args := range [][]string{{"kubeadm", "version", "-o", "short"}, {"kubelet", "--version"}, {"kubectl", "version", "--client"}} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, args[0]), args[1:]...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), kubeadm.Version) {
			t.Errorf("%s: %v: %s", args[0], err, out)
		}
	}
}

func TestKubeadmTakesOurDocuments(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm")
	for _, profile := range []kubeadm.Profile{kubeadm.Normal, kubeadm.Slow} {
		p := clusterParams()
		p.Profile = profile
		documents, err := kubeadm.InitDocuments(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Validate(t.Context(), program, documents); err != nil {
			t.Errorf("profile %q: %v", profile, err)
		}
	}
}

// TestKubeadmsSizesOfSubnets: kubeadm takes networks of both families, and its limits are those of CheckSizes.
func TestKubeadmsSizesOfSubnets(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm")
	for _, c := range []struct{ pods, services string }{
		{"10.244.0.0/16,fd00:10:244::/56", "10.96.0.0/12,fd00:10:96::/112"},
		{"fd00:10:244::/48", "fd00:10:96::/108"},
		{"10.244.0.0/24", "10.96.0.0/28"},
		{"10.244.0.0/25", "10.96.0.0/12"},
		{"12.0.0.0/7", "10.96.0.0/12"},
		{"10.244.0.0/16", "10.0.0.0/11"},
		{"10.244.0.0/16", "10.96.0.0/29"},
		{"fd00:10:244::/65", "fd00:10:96::/112"},
		{"fd00:10:200::/47", "fd00:10:96::/112"},
		{"fd00:10:244::/56", "fd00:10:96::/107"},
	} {
		p := clusterParams()
		p.PodSubnet, p.ServiceSubnet = kubeadm.MustParseSubnets(c.pods), kubeadm.MustParseSubnets(c.services)
		if p.AdvertiseAddress = netip.MustParseAddr("192.0.2.7"); p.ServiceSubnet[0].Addr().Is6() {
			p.AdvertiseAddress = netip.MustParseAddr("2001:db8::7")
		}
		documents, err := kubeadm.InitDocuments(p)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := p.CheckSizes(), run.Validate(t.Context(), program, documents)
		if (ours == nil) != (theirs == nil) {
			t.Errorf("%v: we say %v, kubeadm %v", c, ours, theirs)
		}
	}
}

func TestKubeadmRefuses(t *testing.T) {
	program := filepath.Join(kubernetesBundle(t), "usr", "bin", "kubeadm")
	good, err := kubeadm.InitDocuments(clusterParams())
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"unknown field": {"bindPort:", "bindingPort:"},
		"bad address":   {"10.0.2.15", "ten"},
	} {
		documents := strings.ReplaceAll(string(good), change[0], change[1])
		if err := run.Validate(t.Context(), program, []byte(documents)); err == nil {
			t.Errorf("%s: kubeadm takes it", name)
		} else {
			t.Log(err)
		}
	}
}

// TestPatchesReachEveryProgram lets kubeadm write what the kubelet will run, and looks for the verity root in it.
func TestPatchesReachEveryProgram(t *testing.T) {
	root := kubernetesBundle(t)
	documents, err := kubeadm.InitDocuments(clusterParams())
	if err != nil {
		t.Fatal(err)
	}
	patched := strings.Replace(string(documents), kubeadm.PatchesDir, filepath.Join(root, kubeadm.PatchesDir), 1)
	manifests := dryRun(t.Context(), t, root, patched)
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"} {
		text, err := os.ReadFile(filepath.Join(manifests, name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"image: " + KubernetesRepository + "/" + name + ":", "mountPath: /usr/lib/kubernetes/bin", "path: /usr/lib/kubernetes/bin"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s.yaml lacks %q:\n%s", name, want, text)
			}
		}
	}
}

// dryRun runs kubeadm's phases that write manifests in a root folder of their own, and returns the folder that they are in.
func dryRun(ctx context.Context, t *testing.T, root, documents string) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBEADM_INIT_DRYRUN_DIR", filepath.Join(dir, "out")) // kubeadm makes it
	for _, phase := range [][]string{{"control-plane", "all"}, {"etcd", "local"}} {
		args := append(append([]string{"init", "phase"}, phase...), "--config", config, "--dry-run")
		if out, err := exec.CommandContext(ctx, filepath.Join(root, "usr", "bin", "kubeadm"), args...).CombinedOutput(); err != nil {
			t.Fatalf("kubeadm %s: %v: %s", phase[0], err, out)
		}
	}
	return filepath.Join(dir, "out")
}

// TestSignersAreApart lets kubeadm write the controller manager's and the API server's manifests, and the real controller
// manager judge its own: of the pairs that sign, the kubelets' serving certificates' is one of its own, and the general one is
// empty, which beside the others would be refused.
func TestSignersAreApart(t *testing.T) {
	root := kubernetesBundle(t)
	documents, err := kubeadm.InitDocuments(clusterParams())
	if err != nil {
		t.Fatal(err)
	}
	if err := kubeadm.CheckDocuments(documents); err != nil {
		t.Fatal(err)
	}
	manifests := dryRun(t.Context(), t, root, strings.Replace(string(documents), kubeadm.PatchesDir, filepath.Join(root, kubeadm.PatchesDir), 1))
	var signing []string
	for program, want := range map[string]map[string]string{
		"kube-apiserver": {"kubelet-certificate-authority": "kubelet-serving-trust.crt", "kubelet-preferred-address-types": "", "client-ca-file": "ca.crt"},
		"kube-controller-manager": {
			"root-ca-file": "ca.crt", "cluster-signing-kubelet-serving-cert-file": "kubelet-serving-ca.crt", "cluster-signing-kubelet-serving-key-file": "kubelet-serving-ca.key",
			"cluster-signing-kubelet-client-cert-file": "kubernetes-signing-ca.crt", "cluster-signing-kube-apiserver-client-cert-file": "kubernetes-signing-ca.crt",
		},
	} {
		text, err := os.ReadFile(filepath.Join(manifests, program+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for flag, file := range want {
			if line := "- --" + flag + "="; !strings.Contains(string(text), line+"/etc/kubernetes/pki/"+file+"\n") && !(file == "" && strings.Contains(string(text), line+"InternalIP,ExternalIP,Hostname\n")) {
				t.Errorf("%s.yaml has no %s%s:\n%s", program, line, file, text)
			}
		}
		for line := range strings.Lines(string(text)) {
			if flag := strings.TrimPrefix(strings.TrimSpace(line), "- "); strings.HasPrefix(flag, "--cluster-signing-") {
				signing = append(signing, flag)
			}
		}
	}
	for _, given := range []string{"--cluster-signing-cert-file=", "--cluster-signing-key-file="} {
		if !slices.Contains(signing, given) {
			t.Errorf("the general pair is not emptied: %q", signing)
		}
	}
	// With the general pair the program ends before it looks at any file; without, at the kubeconfig that is not there.
	for args, says := range map[string]string{
		"--v=0": "kubeconfig",
		"--cluster-signing-cert-file=/x --cluster-signing-key-file=/y": "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags",
	} {
		all := append(append(slices.Clone(signing), "--kubeconfig=/nowhere/kubeconfig", "--secure-port=0"), strings.Fields(args)...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := exec.CommandContext(ctx, filepath.Join(root, "usr", "lib", "kubernetes", "bin", "kube-controller-manager"), all...).CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("with %s the controller manager says %q: %v", args, out, err)
		}
	}
}
