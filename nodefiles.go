package hullmark

import (
	"slices"
	"strings"
)

// Files of a control plane's state disk that code beside the table below names.
const (
	// PolicyFile holds the signed policy by which a control plane's keys were brought, DocumentsFolder the documents that this accepts.
	PolicyFile      = "/var/lib/hullmark/policy"
	DocumentsFolder = "/var/lib/hullmark/documents"
	// RotationFile holds a KeyRotation.
	RotationFile = "/var/lib/hullmark/rotation"
	// SettingsFile holds what a join service has to know of the cluster beside keys and policy.
	SettingsFile = "/var/lib/hullmark/settings.json"
	// FirstRecordFile holds the first node's record while no API server can keep it.
	FirstRecordFile = "/var/lib/hullmark/initialising.json"
	// RootFile is the root's certificate; the online CA's key pair, the keyset and what its keeper takes lie beside it.
	RootFile              = "/var/lib/hullmark/root.crt"
	OnlineCACertificate   = "/var/lib/hullmark/online-ca.crt"
	OnlineCAKey           = "/var/lib/hullmark/online-ca.key"
	KeysetFile            = "/var/lib/hullmark/keyset.json"
	KeeperSecretFile      = "/var/lib/hullmark/keeper.secret"
	KeeperAuthoritiesFile = "/var/lib/hullmark/keeper.crt"
	// KubeletServingCertificate and KubeletServingKey sign kubelets' serving certificates.
	KubeletServingCertificate = "/etc/kubernetes/pki/kubelet-serving-ca.crt"
	KubeletServingKey         = "/etc/kubernetes/pki/kubelet-serving-ca.key"
	// KubeletTrustFile is what the API server holds kubelets to: that CA, and while it is exchanged the other one, too.
	KubeletTrustFile = "/etc/kubernetes/pki/kubelet-serving-trust.crt"
	// EtcdCACertificate and EtcdCAKey are etcd's CA, FrontProxyCACertificate and FrontProxyCAKey that of the front proxy, where kubeadm
	// keeps them. The first certificate of a file signs; while it is exchanged the other one follows, which is trusted, too.
	EtcdCACertificate       = "/etc/kubernetes/pki/etcd/ca.crt"
	EtcdCAKey               = "/etc/kubernetes/pki/etcd/ca.key"
	FrontProxyCACertificate = "/etc/kubernetes/pki/front-proxy-ca.crt"
	FrontProxyCAKey         = "/etc/kubernetes/pki/front-proxy-ca.key"
	// KubernetesCACertificate and KubernetesCAKey are the cluster's CA, likewise; a worker has the first, to know API servers by.
	// KubernetesSigningCertificate is the first certificate alone: the controller manager signs with that key by no file of two.
	KubernetesCACertificate      = "/etc/kubernetes/pki/ca.crt"
	KubernetesCAKey              = "/etc/kubernetes/pki/ca.key"
	KubernetesSigningCertificate = "/etc/kubernetes/pki/kubernetes-signing-ca.crt"
)

// NodeFile is a file of a node's state disk that somebody else than its programs writes. Its owner is root.
type NodeFile struct {
	// Path is where programs see it; a folder ends with a slash, and stands for all below it.
	Path string
	// Mode has the permission bits; 0 for what kubeadm writes.
	Mode uint32
	// Credential is the name under which the join service is handed it (systemd.exec(5), LoadCredential=); empty for what it is not.
	Credential string
	// Kubeadm says that kubeadm writes it, or is the reason that it is written.
	Kubeadm bool
	// Shared says that all control planes have the same: one that joins is given it by one that is there.
	Shared bool
	// Optional files may be missing.
	Optional bool
	// Rotated says that it comes with a rotation, Replaced that a rotation replaces it, and that the policy commits to what
	// it holds (KeysDigest).
	Rotated, Replaced bool
}

// nodeFiles is the one table of them. DigestKeys takes those that are replaced in this order. Whoever makes the files of a
// control plane (cluster.Cluster.Files) has to make all that are shared; the join service's unit names all that have a
// credential.
var nodeFiles = []NodeFile{
	{Path: RootFile, Mode: 0o644, Credential: "root.crt", Shared: true, Rotated: true, Replaced: true},
	{Path: OnlineCACertificate, Mode: 0o644, Credential: "online-ca.crt", Shared: true, Rotated: true, Replaced: true},
	{Path: OnlineCAKey, Mode: 0o600, Credential: "online-ca.key", Shared: true, Rotated: true, Replaced: true},
	{Path: KeysetFile, Mode: 0o600, Credential: "keyset.json", Shared: true, Rotated: true, Replaced: true},
	{Path: KeeperSecretFile, Mode: 0o600, Credential: "keeper.secret", Shared: true, Optional: true, Rotated: true, Replaced: true},
	{Path: KeeperAuthoritiesFile, Mode: 0o644, Credential: "keeper.crt", Shared: true, Optional: true, Rotated: true, Replaced: true},
	{Path: KubeletServingCertificate, Mode: 0o644, Credential: "kubelet-serving-ca.crt", Shared: true, Rotated: true, Replaced: true},
	{Path: KubeletServingKey, Mode: 0o600, Credential: "kubelet-serving-ca.key", Shared: true, Rotated: true, Replaced: true},
	{Path: KubeletTrustFile, Mode: 0o644, Credential: "kubelet-serving-trust.crt", Shared: true, Rotated: true, Replaced: true},
	{Path: EtcdCACertificate, Mode: 0o644, Credential: "etcd-ca.crt", Kubeadm: true, Shared: true, Rotated: true, Replaced: true},
	{Path: EtcdCAKey, Mode: 0o600, Credential: "etcd-ca.key", Kubeadm: true, Shared: true, Rotated: true, Replaced: true},
	{Path: FrontProxyCACertificate, Mode: 0o644, Credential: "front-proxy-ca.crt", Kubeadm: true, Shared: true, Rotated: true, Replaced: true},
	{Path: FrontProxyCAKey, Mode: 0o600, Credential: "front-proxy-ca.key", Kubeadm: true, Shared: true, Rotated: true, Replaced: true},
	{Path: KubernetesCACertificate, Mode: 0o644, Credential: "ca.crt", Kubeadm: true, Shared: true, Rotated: true, Replaced: true},
	{Path: KubernetesCAKey, Mode: 0o600, Credential: "ca.key", Kubeadm: true, Shared: true, Rotated: true, Replaced: true},
	{Path: KubernetesSigningCertificate, Mode: 0o644, Credential: "kubernetes-signing-ca.crt", Shared: true, Rotated: true, Replaced: true},
	{Path: RotationFile, Mode: 0o600, Credential: "rotation", Shared: true, Rotated: true},
	{Path: SettingsFile, Mode: 0o644, Credential: "settings.json", Shared: true},
	{Path: "/etc/kubernetes/pki/sa.key", Mode: 0o600, Credential: "sa.key", Kubeadm: true, Shared: true},
	{Path: "/etc/kubernetes/pki/sa.pub", Mode: 0o644, Credential: "sa.pub", Kubeadm: true, Shared: true},
	// The policy in force counts, which the service adds; and the first node's record stays with the first node.
	{Path: PolicyFile, Mode: 0o644, Credential: "policy", Rotated: true},
	{Path: DocumentsFolder + "/", Mode: 0o644, Credential: "documents", Rotated: true},
	{Path: FirstRecordFile, Mode: 0o600, Credential: "initialising.json", Optional: true},
	{Path: "/var/lib/hullmark/policy.json", Mode: 0o600, Optional: true},
	{Path: "/etc/kubernetes/pki/", Kubeadm: true},
	{Path: "/etc/kubernetes/tmp/", Kubeadm: true},
	{Path: "/etc/kubernetes/discovery.conf", Kubeadm: true},
	{Path: "/etc/kubernetes/renew.yaml", Kubeadm: true},
	{Path: "/etc/kubernetes/admin.conf", Kubeadm: true},
	{Path: "/etc/kubernetes/super-admin.conf", Kubeadm: true},
	{Path: "/etc/kubernetes/kubelet.conf", Kubeadm: true},
	{Path: "/etc/kubernetes/bootstrap-kubelet.conf", Kubeadm: true},
	{Path: "/etc/kubernetes/controller-manager.conf", Kubeadm: true},
	{Path: "/etc/kubernetes/scheduler.conf", Kubeadm: true},
	{Path: "/etc/kubernetes/manifests/etcd.yaml", Kubeadm: true},
	{Path: "/etc/kubernetes/manifests/kube-apiserver.yaml", Kubeadm: true},
	{Path: "/etc/kubernetes/manifests/kube-controller-manager.yaml", Kubeadm: true},
	{Path: "/etc/kubernetes/manifests/kube-scheduler.yaml", Kubeadm: true},
}

// NodeFiles returns the table, a copy that is the caller's.
func NodeFiles() []NodeFile { return slices.Clone(nodeFiles) }

// NodeFileOf returns what the table says of a file, by its own name or by its folder's.
func NodeFileOf(path string) (f NodeFile, ok bool) {
	i := slices.IndexFunc(nodeFiles, func(f NodeFile) bool { return f.Path == path })
	if i < 0 {
		i = slices.IndexFunc(nodeFiles, func(f NodeFile) bool { return strings.HasSuffix(f.Path, "/") && strings.HasPrefix(path, f.Path) })
	}
	if i < 0 {
		return NodeFile{}, false
	}
	return nodeFiles[i], true
}

// Reserved reports whether Hullmark or kubeadm write a file of a node's state disk, or one in its place: nobody else names it.
func Reserved(path string) bool {
	return slices.ContainsFunc(nodeFiles, func(f NodeFile) bool {
		name := strings.TrimSuffix(f.Path, "/")
		return path == name || strings.HasPrefix(path, name+"/")
	})
}

// Replaced reports whether a rotation replaces the file of a control plane, and its policy commits to what it holds (KeysDigest).
func Replaced(path string) bool {
	f, ok := NodeFileOf(path)
	return ok && f.Replaced
}

// Rotated reports whether a file comes with a rotation: one that it exchanges, the policy that says so, the documents that this
// accepts, and RotationFile.
func Rotated(path string) bool {
	f, ok := NodeFileOf(path)
	return ok && f.Rotated
}
