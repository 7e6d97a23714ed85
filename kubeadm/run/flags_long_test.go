//go:build long

package run_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// The real programs take the flags of Hullmark's own documents, and refuse what they do not know.
func TestProgramsJudgeFlags(t *testing.T) {
	bin, err := testenv.Programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flags, err := kubeadm.ProgramFlags([]byte("{apiServer: {extraArgs: [{name: emulated-version, value: '1.35'}, {name: kubelet-certificate-authority, value: /ca.crt}]}, " +
		"controllerManager: {extraArgs: [{name: cluster-signing-duration, value: 72h}]}, scheduler: {extraArgs: [{name: feature-gates, value: 'AllAlpha=false'}]}, etcd: {local: {extraArgs: [{name: heartbeat-interval, value: '500'}]}}}"))
	if err != nil {
		t.Fatal(err)
	}
	flags["kubelet"] = []string{"--node-ip=192.0.2.7", "--pod-cidr=10.0.0.0/8"}
	deprecated, err := run.CheckFlags(t.Context(), bin, flags)
	if err != nil || !slices.Equal(deprecated, []string{"kubelet --pod-cidr"}) {
		t.Errorf("got %q, %v", deprecated, err)
	}
	for program, flag := range map[string]string{
		"kube-apiserver": "--enable-swagger-ui=true", "kube-controller-manager": "--feature-gates=NoSuchGate=true", "kube-scheduler": "--port=0",
		"etcd": "--enable-v2=true", "kubelet": "--container-runtime=remote",
	} {
		_, err := run.CheckFlags(t.Context(), bin, map[string][]string{program: {flag}})
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		if program == "kube-controller-manager" {
			name = "NoSuchGate"
		}
		if err == nil || !strings.Contains(err.Error(), "flags-removed: "+program) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s %s: %v", program, flag, err)
		}
	}
}
