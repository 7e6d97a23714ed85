package render

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// roots are the folders below which a node places files.
var roots = []string{"/etc/kubernetes/", "/var/lib/hullmark/"}

// taken are files, and folders that end with a slash, that Hullmark or kubeadm write.
var taken = []string{
	"/etc/kubernetes/pki/", "/etc/kubernetes/discovery.conf",
	"/etc/kubernetes/admin.conf", "/etc/kubernetes/super-admin.conf", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf",
	"/etc/kubernetes/controller-manager.conf", "/etc/kubernetes/scheduler.conf", "/etc/kubernetes/tmp/",
	"/etc/kubernetes/manifests/etcd.yaml", "/etc/kubernetes/manifests/kube-apiserver.yaml",
	"/etc/kubernetes/manifests/kube-controller-manager.yaml", "/etc/kubernetes/manifests/kube-scheduler.yaml",
	"/var/lib/hullmark/root.crt", "/var/lib/hullmark/policy", "/var/lib/hullmark/policy.json",
	"/var/lib/hullmark/online-ca.crt", "/var/lib/hullmark/online-ca.key", "/var/lib/hullmark/keyset.json",
	"/var/lib/hullmark/keeper.secret", "/var/lib/hullmark/keeper.crt",
	"/var/lib/hullmark/initialising.json", "/var/lib/hullmark/settings.json", "/var/lib/hullmark/documents/",
}

var (
	modePattern = regexp.MustCompile(`^0[0-7]{3}$`)
	// filePattern keeps out what a shell, a unit file or a terminal could read as something else.
	filePattern = regexp.MustCompile(`^[A-Za-z0-9/_.-]{1,200}$`)
	// hookPattern is stricter than systemd.unit(5): one service, no instance, no path.
	hookPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}\.service$`)
)

// checkPlaced checks the files and hooks of one node.
func checkPlaced(files []File, hooks []string) error {
	if len(files) > maxFiles || len(hooks) > maxHooks {
		return fmt.Errorf("files: %d, hooks: %d: want at most %d and %d", len(files), len(hooks), maxFiles, maxHooks)
	}
	for i, f := range files {
		if err := f.check(); err != nil {
			return fmt.Errorf("files: %.200q: %w", f.Path, err)
		}
		if slices.ContainsFunc(files[:i], func(other File) bool { return clash(other.Path, f.Path) }) {
			return fmt.Errorf("files: %s: there is another file in its place", f.Path)
		}
	}
	for i, h := range hooks {
		if !hookPattern.MatchString(h) {
			return fmt.Errorf("hooks: %.200q: want the name of a service in the image: lower-case letters, digits and hyphens, and .service", h)
		}
		if strings.HasPrefix(h, "hullmark-") || h == "kubelet.service" || h == "containerd.service" {
			return fmt.Errorf("hooks: %s: Hullmark starts it itself", h)
		}
		if slices.Contains(hooks[:i], h) {
			return fmt.Errorf("hooks: %s: named twice", h)
		}
	}
	return nil
}

func (f File) check() error {
	inside := func(root string) bool { return len(f.Path) > len(root) && strings.HasPrefix(f.Path, root) }
	if !filePattern.MatchString(f.Path) || path.Clean(f.Path) != f.Path || !slices.ContainsFunc(roots, inside) {
		return fmt.Errorf("want a clean path below %s", strings.Join(roots, " or "))
	}
	for _, t := range taken {
		if f.Path == strings.TrimSuffix(t, "/") || strings.HasSuffix(t, "/") && strings.HasPrefix(f.Path, t) || strings.HasPrefix(f.Path, t+"/") {
			return fmt.Errorf("%s is what Hullmark or kubeadm writes; choose another name", t)
		}
	}
	if f.Mode != "" && !modePattern.MatchString(f.Mode) {
		return fmt.Errorf("mode %q: want four octal digits such as \"0644\", quoted", f.Mode)
	}
	return nil
}

// clash reports whether two files cannot both exist.
func clash(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}
