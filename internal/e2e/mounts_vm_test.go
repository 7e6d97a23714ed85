//go:build vm

package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// lookManifest shows what the machine's first process has mounted; its program is the verity root's.
const lookManifest = `apiVersion: v1
kind: Pod
metadata:
  name: look
spec:
  automountServiceAccountToken: false
  restartPolicy: Never
  hostPID: true
  tolerations:
  - operator: Exists
  containers:
  - name: look
    image: IMAGE
    command: ["/usr/bin/cat", "/proc/1/mountinfo"]
    securityContext:
      privileged: true
    volumeMounts:
    - name: verity-root
      mountPath: /usr
      readOnly: true
  volumes:
  - name: verity-root
    hostPath:
      path: /usr
      type: Directory
`

// mountOptions are, by mount point, the options that a node mounts what is below its own with, and the kind of file system.
func mountOptions(mountinfo string) map[string][]string {
	found := map[string][]string{}
	for line := range strings.Lines(mountinfo) {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue (proc_pid_mountinfo(5))
		words := strings.Fields(line)
		if dash := slices.Index(words, "-"); dash >= 6 && len(words) > dash+1 {
			found[words[4]] = append(strings.Split(words[5], ","), words[dash+1])
		}
	}
	return found
}

// runsNoPrograms looks how the running machine has its state disk mounted: programs of it run in containers alone.
func (b bench) runsNoPrograms(t *testing.T) {
	t.Helper()
	image := b.kubectl(t, "get", "deployment", "coredns", "--namespace", "kube-system", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	if err := os.WriteFile(b.path("look.yaml"), []byte(strings.Replace(lookManifest, "IMAGE", strings.TrimSpace(image), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "apply", "-f", b.path("look.yaml"))
	b.kubectl(t, "wait", "--for", "jsonpath={.status.phase}=Succeeded", "pod/look", "--timeout", "5m")
	mounts := mountOptions(b.kubectl(t, "logs", "look"))
	b.kubectl(t, "delete", "pod", "look", "--grace-period", "0")
	for where, noexec := range map[string]bool{
		"/run/hullmark/state": true, "/var": true, "/etc/kubernetes": true, "/etc/cni": true, "/var/lib/cni": true, "/var/log/journal": true,
		"/var/lib/containerd": false, "/var/lib/kubelet/pods": false, "/opt/cni/bin": false,
	} {
		options := mounts[where]
		if !slices.Contains(options, "nosuid") || !slices.Contains(options, "nodev") || slices.Contains(options, "noexec") != noexec {
			t.Errorf("%s is mounted with %q", where, options)
		}
		// No mount is made, and no file of Kubernetes' is read, by a link that root left.
		if noLinks := where == "/run/hullmark/state" || where == "/etc/kubernetes"; slices.Contains(options, "nosymfollow") != noLinks {
			t.Errorf("%s is mounted with %q, and nosymfollow: want %v", where, options, noLinks)
		}
	}
	for _, where := range []string{"/etc/cni", "/opt/cni/bin", "/var/lib/cni", "/var/log/journal"} {
		if !slices.Contains(mounts[where], "tmpfs") {
			t.Errorf("%s is no RAM disk: %q", where, mounts[where])
		}
	}
}
