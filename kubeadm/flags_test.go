package kubeadm

import (
	"reflect"
	"slices"
	"testing"
)

func TestCheckFlags(t *testing.T) {
	for text, fine := range map[string]bool{
		`KUBELET_KUBEADM_ARGS=""` + "\n": true,
		`KUBELET_KUBEADM_ARGS="--hostname-override=node-1 --node-labels=example.net/a=b --register-with-taints=a=b:NoSchedule"` + "\n": true,
		`KUBELET_KUBEADM_ARGS="--a=\"b c\""` + "\n": true,
		`KUBELET_KUBEADM_ARGS="--image-credential-provider-bin-dir=/usr/lib/providers --image-credential-provider-config=/usr/lib/providers.yaml"`: true,
		``: false,
		`LD_PRELOAD="/var/lib/kubelet/pods/a.so"`:                                                      false,
		`KUBELET_KUBEADM_ARGS=""` + "\n" + `LD_PRELOAD=/var/lib/kubelet/pods/a.so` + "\n":              false,
		`LD_PRELOAD=/var/lib/kubelet/pods/a.so` + "\n" + `KUBELET_KUBEADM_ARGS=""`:                     false,
		`KUBELET_KUBEADM_ARGS="" LD_PRELOAD=/a`:                                                        false,
		`KUBELET_KUBEADM_ARGS="a` + "\\\n" + `b"`:                                                      false,
		`HULLMARK_KUBELET_ARGS="--config=/var/a"`:                                                      false,
		`KUBELET_KUBEADM_ARGS="--image-credential-provider-bin-dir=/var/lib/kubelet/pods/a"`:           false,
		`KUBELET_KUBEADM_ARGS="--v=2 -image-credential-provider-bin-dir /var/lib/kubelet/pods/a"`:      false,
		`KUBELET_KUBEADM_ARGS="--v=2 \"--image-credential-provider-bin-dir=/var/lib/kubelet/pods/a\""`: false,
		`KUBELET_KUBEADM_ARGS="--image-credential-provider-bin-dir=/usr/../var/lib/kubelet/pods/a"`:    false,
		`KUBELET_KUBEADM_ARGS="--image_credential_provider_bin_dir=/var/lib/containerd/a"`:             false,
		`KUBELET_KUBEADM_ARGS="--image-\"credential\"-provider-bin-dir=/var/lib/containerd/a"`:         false,
		`KUBELET_KUBEADM_ARGS="--i\mage-credential-provider-bin-dir=/var/lib/containerd/a"`:            false,
		`KUBELET_KUBEADM_ARGS="--i\\mage-credential-provider-bin-dir=/var/lib/containerd/a"`:           false,
		`KUBELET_KUBEADM_ARGS="'--image-credential-provider-bin-dir'=/var/lib/containerd/a"`:           false,
		`KUBELET_KUBEADM_ARGS="--a=\"b"`:                                                               false,
		`KUBELET_KUBEADM_ARGS="--image_credential_provider_bin_dir=/usr/lib/providers"`:                true,
		`KUBELET_KUBEADM_ARGS="--image-credential-provider-bin-dir"`:                                   false,
	} {
		if err := CheckFlags([]byte(text)); (err == nil) != fine {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := CheckFlags(make([]byte, maxFlags+1)); err == nil {
		t.Error("a file of any size is read")
	}
}

func FuzzCheckFlags(f *testing.F) {
	f.Add([]byte(`KUBELET_KUBEADM_ARGS="--image-credential-provider-bin-dir=/usr/a"` + "\n"))
	f.Add([]byte("KUBELET_KUBEADM_ARGS=\"a\\\nb\""))
	f.Fuzz(func(t *testing.T, text []byte) {
		if CheckFlags(text) != nil {
			return
		}
		lines := 0
		for i, c := range text {
			if c == '\n' && i < len(text)-1 {
				lines++
			}
		}
		if lines != 0 {
			t.Errorf("%q has more than one line", text)
		}
	})
}

func TestProgramFlags(t *testing.T) {
	got, err := ProgramFlags([]byte("apiServer: {extraArgs: [{name: v, value: '2'}, {name: v, value: '3'}]}\ncontrollerManager: {}\netcd: {local: {extraArgs: [{name: snapshot_count, value: ''}]}}\n"))
	if want := map[string][]string{"kube-apiserver": {"--v=2", "--v=3"}, "etcd": {"--snapshot-count="}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"apiServer: {extraArgs: {v: '2'}}", "scheduler: {extraArgs: [{name: --v, value: '2'}]}", "\t"} {
		if got, err := ProgramFlags([]byte(bad)); err == nil {
			t.Errorf("%s: %q", bad, got)
		}
	}
}

func TestKubeletFlags(t *testing.T) {
	got, err := KubeletFlags([]byte(`KUBELET_KUBEADM_ARGS="--node-ip=192.0.2.7 --v=2"` + "\n"))
	if err != nil || !slices.Equal(got, []string{"--node-ip=192.0.2.7", "--v=2"}) {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := KubeletFlags([]byte("PATH=/tmp\n")); err == nil {
		t.Errorf("got %q", got)
	}
}
