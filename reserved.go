package hullmark

import "strings"

// SettingsFile holds what a control plane's join service has to know of the cluster beside keys and policy.
const SettingsFile = "/var/lib/hullmark/settings.json"

// reserved are files, and folders that end with a slash, that Hullmark or kubeadm write.
var reserved = []string{
	"/etc/kubernetes/pki/", "/etc/kubernetes/discovery.conf", "/etc/kubernetes/renew.yaml",
	"/etc/kubernetes/admin.conf", "/etc/kubernetes/super-admin.conf", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf",
	"/etc/kubernetes/controller-manager.conf", "/etc/kubernetes/scheduler.conf", "/etc/kubernetes/tmp/",
	"/etc/kubernetes/manifests/etcd.yaml", "/etc/kubernetes/manifests/kube-apiserver.yaml",
	"/etc/kubernetes/manifests/kube-controller-manager.yaml", "/etc/kubernetes/manifests/kube-scheduler.yaml",
	"/var/lib/hullmark/root.crt", "/var/lib/hullmark/policy", "/var/lib/hullmark/policy.json",
	"/var/lib/hullmark/online-ca.crt", "/var/lib/hullmark/online-ca.key", "/var/lib/hullmark/keyset.json",
	"/var/lib/hullmark/keeper.secret", "/var/lib/hullmark/keeper.crt", "/var/lib/hullmark/rotation",
	"/var/lib/hullmark/initialising.json", "/var/lib/hullmark/settings.json", "/var/lib/hullmark/documents/",
}

// Reserved reports whether Hullmark or kubeadm write a file of a node's state disk, or one in its place: nobody else names it.
func Reserved(path string) bool {
	for _, r := range reserved {
		if path == strings.TrimSuffix(r, "/") || strings.HasSuffix(r, "/") && strings.HasPrefix(path, r) || strings.HasPrefix(path, r+"/") {
			return true
		}
	}
	return false
}
