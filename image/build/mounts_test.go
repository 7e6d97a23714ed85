package build

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// executed are the only folders of the state disk from which programs run: containers' images and pods' volumes.
var executed = []string{"/var/lib/containerd", "/var/lib/kubelet/pods"}

var mountLine = regexp.MustCompile(`(?m)^ExecStart=/usr/bin/mount -c (?:--mkdir )?(?:-t \S+ )?-o (\S+) (\S+) (\S+)$`)

// TestStateDiskRunsNoPrograms holds how hullmark-state.service mounts: root that is taken over once leaves no program on the
// disk that the next boot's root runs, outside of containers.
func TestStateDiskRunsNoPrograms(t *testing.T) {
	text := readText(t, "../../systemd/system/hullmark-state.service")
	mounts := mountLine.FindAllStringSubmatch(text, -1)
	if strings.Count(text, "/usr/bin/mount ") != len(mounts) {
		t.Fatalf("%d of the unit's mounts are understood", len(mounts))
	}
	targets := map[string]string{}
	for _, m := range mounts {
		options, source, target := strings.Split(m[1], ","), m[2], m[3]
		// No mount is made by a way over the disk but where links are not followed.
		if (target == "/run/hullmark/state" || target == "/etc/kubernetes") && !slices.Contains(options, "nosymfollow") || strings.HasPrefix(target, "/var/") {
			t.Errorf("%s is mounted with %q: mounts follow links that root left on the disk", target, options)
		}
		// All of /var's is bound over it at once, and last.
		if inVar, ok := strings.CutPrefix(target, "/run/hullmark/state/var/"); ok {
			if targets["/var"] != "" {
				t.Errorf("%s is mounted after /var", target)
			}
			target = "/var/" + inVar
		}
		targets[target] = source
		for _, want := range []string{"nosuid", "nodev"} {
			if !slices.Contains(options, want) {
				t.Errorf("%s is not mounted %s", target, want)
			}
		}
		// A RAM disk begins empty at each boot.
		if source != "tmpfs" && slices.Contains(options, "noexec") == slices.Contains(executed, target) {
			t.Errorf("%s of the state disk is mounted with %q", target, options)
		}
	}
	for _, folder := range []string{"/etc/cni", "/opt/cni/bin", "/var/lib/cni", "/var/log/journal"} {
		if targets[folder] != "tmpfs" {
			t.Errorf("%s is %q, not a RAM disk", folder, targets[folder])
		}
	}
	for _, target := range append([]string{"/run/hullmark/state", "/var", "/etc/kubernetes"}, executed...) {
		if targets[target] == "" {
			t.Errorf("%s is not mounted", target)
		}
	}
	if targets["/opt"] != "" {
		t.Error("containerd looks for programs in /opt, which is on the state disk")
	}
}

// TestKubeletsFlagsOfTheRoot holds that a flag or a setting on the disk changes none of those that lead to other programs, pods or callers.
func TestKubeletsFlagsOfTheRoot(t *testing.T) {
	text := strings.ReplaceAll(readText(t, "../../systemd/system/kubelet.service"), "\\\n", " ")
	_, command, _ := strings.Cut(text, "\nExecStart=/usr/bin/kubelet ")
	command, _, _ = strings.Cut(command, "\n")
	words := strings.Fields(command)
	// Those at the end are the agent's, of this boot.
	if len(words) == 0 || words[0] != "$KUBELET_KUBEADM_ARGS" || words[len(words)-1] != "$HULLMARK_KUBELET_ARGS" || strings.Count(command, "$") != 2 {
		t.Fatalf("the flags on the disk come last, or twice: %q", words)
	}
	for _, flag := range []string{
		"--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--config=/var/lib/kubelet/config.yaml", "--config-dir=",
		"--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "--pod-manifest-path=/etc/kubernetes/manifests", "--manifest-url=",
		"--anonymous-auth=false", "--authorization-mode=Webhook", "--client-ca-file=/etc/kubernetes/pki/ca.crt", "--read-only-port=0", "--root-dir=/var/lib/kubelet",
		"--cert-dir=/var/lib/kubelet/pki", "--volume-plugin-dir=/var/lib/kubelet/volume-plugins",
	} {
		if !slices.Contains(words, flag) {
			t.Errorf("the unit has no %s", flag)
		}
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
