package kubeadmspec

import (
	"slices"
	"strings"

	"github.com/hullmark/hullmark/kubeadm"
)

// Field is a row of the table that says what becomes of each field of a KubeadmConfigSpec.
type Field struct {
	// Path is the field's in JSON, with [] for each element of a list. A field that is refused stands for all below it.
	Path string
	// Where is the place in a cluster document at which its value is found again: pool is the pool of these nodes, and a name
	// such as JoinConfiguration the override of that kind. It is empty for what is refused.
	Where string
	// Why says why it is refused, and what to do instead; of a field that is honoured, what is to be known of that.
	Why string
	// Same are values of a field that is refused, as JSON has them, that say what Hullmark does anyway: they are taken.
	Same []any
	// Workers says why it is refused for workers, if it is for them alone.
	Workers string

	// open says that the fields below it have rows of their own.
	open bool
	// required says that the object around it means nothing without it.
	required bool
	// agrees says that another field says the same, which alone is put.
	agrees bool
	// use honours a value; the default is keep.
	use use
}

// Fields returns the table: which fields of a KubeadmConfigSpec are honoured, and where, and which are refused, and why. Map
// does what it says. A field that is in no row is refused, too.
func Fields() []Field { return slices.Clone(fields) }

var fields = slices.Concat(
	clusterConfiguration(),
	initConfiguration(),
	joinConfiguration(),
	files(),
	[]Field{
		{Path: "ntp.servers[]", Where: "timeServers[]", Why: "In the node configuration of these nodes."},
		no("ntp.enabled", "A node always asks for the time: whether a certificate is valid depends on it; leave it out.", true),
		no("preKubeadmCommands", noCommands), no("postKubeadmCommands", noCommands), no("bootCommands", noCommands),
		no("users", "Nobody logs in to a node; leave it out."),
		no("diskSetup", "A node's disks are laid out by the image, and its state disk by Hullmark; use a volume of Kubernetes for more."),
		no("mounts", "What is mounted is in the image, and measured; use a volume of Kubernetes for more."),
		no("format", "User data is a node configuration of Hullmark, neither cloud-config nor Ignition; leave it out."),
		no("verbosity", "Hullmark runs kubeadm, and logs its phases; leave it out."),
		no("ignition", "There is no Ignition in the image; use files, and hooks of the cluster document."),
	},
)

const noCommands = "A node runs nothing but what is in the image, and measured; list a service of the image in the cluster document's hooks: it is started at each boot before kubeadm."

// no is a row that refuses.
func no(path, why string, same ...any) Field { return Field{Path: path, Why: why, Same: same} }

// yes is a row that honours.
func yes(path, where string) Field { return Field{Path: path, Where: where} }

// must is yes for what the object around it cannot do without.
func must(path, where string) Field { return Field{Path: path, Where: where, required: true} }

const (
	onlyControlPlane = "It is of the control plane; say it there, and leave it out for workers."
	imagesAreOurs    = "All images of a cluster come with the release, and are measured; leave it out."
	periodsAreOurs   = "How long certificates are valid is Hullmark's to say, which renews them; leave it out."
	noTokens         = "A node is admitted for what it measures, by a ticket, and no token is ever in user data; leave it out."
)

func clusterConfiguration() []Field {
	const at, kind = "clusterConfiguration.", "ClusterConfiguration."
	programs := []string{"apiServer.", "controllerManager.", "scheduler.", "etcd.local."}
	rows := []Field{
		{Path: "clusterConfiguration", Workers: onlyControlPlane, open: true},
		no(at+"controlPlaneEndpoint", "The Cluster has it, in spec.controlPlaneEndpoint; leave it out."),
		{Path: at + "apiServer.certSANs[]", Where: "controlPlane.sans[]"},
	}
	for _, p := range programs {
		rows = append(rows, arguments(at+p+"extraArgs[]", kind+p+"extraArgs[]")...)
	}
	for _, p := range programs {
		rows = append(rows, environment(at+p+"extraEnvs[]", kind+p+"extraEnvs[]")...)
	}
	for _, p := range programs[:3] {
		rows = append(rows, volumes(at+p+"extraVolumes[]", kind+p+"extraVolumes[]")...)
	}
	rows = append(
		rows,
		yes(at+"etcd.local.serverCertSANs[]", kind+"etcd.local.serverCertSANs[]"),
		yes(at+"etcd.local.peerCertSANs[]", kind+"etcd.local.peerCertSANs[]"),
		yes(at+"featureGates", kind+"featureGates"),
		yes(at+"encryptionAlgorithm", kind+"encryptionAlgorithm"),
	)
	for _, p := range programs {
		rows = append(rows, references(at+p+"extraEnvs[].valueFrom.")...)
	}
	return append(
		rows,
		no(at+"imageRepository", imagesAreOurs, kubeadm.Repository),
		no(at+"etcd.local.imageRepository", imagesAreOurs, kubeadm.Repository),
		no(at+"etcd.local.imageTag", imagesAreOurs),
		no(at+"etcd.local.dataDir", "etcd's data is on the state disk, where Hullmark keeps and restores it; leave it out.", kubeadm.EtcdData),
		no(at+"etcd.external", "Each control plane has a member of etcd, which is attested with it; leave it out."),
		no(at+"dns", "CoreDNS comes with the release; change what it answers in its ConfigMap."),
		no(at+"certificatesDir", "Hullmark brings and renews the keys there; leave it out.", "/etc/kubernetes/pki"),
		no(at+"certificateValidityPeriodDays", periodsAreOurs),
		no(at+"caCertificateValidityPeriodDays", periodsAreOurs),
	)
}

const noOwned = "Arguments that Hullmark owns are refused by name."

// arguments are the rows of a list of arguments.
func arguments(at, where string) []Field {
	return []Field{
		{Path: at + ".name", Where: where + ".name", Why: noOwned, required: true},
		{Path: at + ".value", Where: where + ".value", Why: noOwned},
	}
}

// volumes are the rows of a list of volumes.
func volumes(at, where string) []Field {
	return []Field{
		must(at+".name", where+".name"),
		must(at+".hostPath", where+".hostPath"),
		must(at+".mountPath", where+".mountPath"),
		yes(at+".readOnly", where+".readOnly"),
		yes(at+".pathType", where+".pathType"),
	}
}

// environment are the rows of a list of environment variables.
func environment(at, where string) []Field {
	return []Field{
		must(at+".name", where+".name"),
		yes(at+".value", where+".value"),
		yes(at+".valueFrom.fieldRef.apiVersion", where+".valueFrom.fieldRef.apiVersion"),
		must(at+".valueFrom.fieldRef.fieldPath", where+".valueFrom.fieldRef.fieldPath"),
		yes(at+".valueFrom.resourceFieldRef.containerName", where+".valueFrom.resourceFieldRef.containerName"),
		must(at+".valueFrom.resourceFieldRef.resource", where+".valueFrom.resourceFieldRef.resource"),
		yes(at+".valueFrom.resourceFieldRef.divisor", where+".valueFrom.resourceFieldRef.divisor"),
	}
}

// references are the rows of environment variables that are elsewhere.
func references(at string) []Field {
	const static = "The control plane's pods are static, and cannot refer to other objects; write the value itself."
	return []Field{no(at+"configMapKeyRef", static), no(at+"secretKeyRef", static), no(at+"fileKeyRef", static)}
}

func initConfiguration() []Field {
	const at = "initConfiguration."
	return slices.Concat(
		[]Field{
			{Path: "initConfiguration", Workers: onlyControlPlane, open: true},
			no(at+"bootstrapTokens", noTokens),
		},
		registration(at, "InitConfiguration.", true),
		endpoint(at+"localAPIEndpoint."),
		phases(at, "InitConfiguration."),
	)
}

func joinConfiguration() []Field {
	const at = "joinConfiguration."
	return slices.Concat(
		registration(at, "JoinConfiguration.", false),
		[]Field{
			no(at+"discovery", noTokens),
			no(at+"caCertPath", "The cluster's CA comes with the ticket; leave it out.", "/etc/kubernetes/pki/ca.crt"),
			{Path: at + "controlPlane", Workers: "The Machine says whether a node is a control plane; leave it out for workers.", open: true},
		},
		endpoint(at+"controlPlane.localAPIEndpoint."),
		phases(at, "JoinConfiguration."),
	)
}

// registration are the rows of how a node registers itself. Of a control plane's two, the first node's has to agree with the
// other where a pool has one setting.
func registration(at, kind string, first bool) []Field {
	at, kind = at+"nodeRegistration.", kind+"nodeRegistration."
	why := ""
	if first {
		why = "Has to be the same as in joinConfiguration."
	}
	return []Field{
		no(at+"name", "A node has its Machine's name; leave it out."),
		no(at+"criSocket", "The image has one container runtime; leave it out.", "unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
		{Path: at + "taints", Where: "pool.taints", Why: strings.TrimSpace("An empty list means none; without it kubeadm's own are set. " + why), open: true, agrees: first, use: begin},
		{Path: at + "taints[].key", Where: "pool.taints[].key", required: true, agrees: first, Why: why},
		{Path: at + "taints[].value", Where: "pool.taints[].value", agrees: first, Why: why},
		{Path: at + "taints[].effect", Where: "pool.taints[].effect", required: true, agrees: first, Why: why},
		no(at+"taints[].timeAdded", "The API server sets it; leave it out."),
		{Path: at + "kubeletExtraArgs[].name", Where: kind + "kubeletExtraArgs[].name", Why: noOwned, required: true, use: argumentName},
		{Path: at + "kubeletExtraArgs[].value", Where: kind + "kubeletExtraArgs[].value", Why: strings.TrimSpace("That of `node-labels` becomes `pool.labels`. " + why), agrees: first, use: argumentValue},
		yes(at+"ignorePreflightErrors[]", kind+"ignorePreflightErrors[]"),
		yes(at+"imagePullPolicy", kind+"imagePullPolicy"),
		yes(at+"imagePullSerial", kind+"imagePullSerial"),
	}
}

// endpoint are the rows of a control plane's own address.
func endpoint(at string) []Field {
	return []Field{
		no(at+"advertiseAddress", "It is the machine's own, which differs from node to node; leave it out."),
		no(at+"bindPort", "API servers listen at port 6443; leave it out.", float64(6443)),
	}
}

// phases are the rows of how kubeadm runs.
func phases(at, kind string) []Field {
	rows := []Field{
		no(at+"skipPhases", "Which phases run is part of how a node joins; leave it out."),
		no(at+"patches.directory", "kubeadm's patches are in the image, and measured; leave it out.", kubeadm.PatchesDir),
	}
	for _, name := range []string{"controlPlaneComponentHealthCheck", "kubeletHealthCheck", "kubernetesAPICall", "etcdAPICall", "tlsBootstrap", "discovery"} {
		rows = append(rows, Field{Path: at + "timeouts." + name + "Seconds", Where: kind + "timeouts." + name, Why: "Without Seconds in its name, as a duration.", use: seconds})
	}
	return rows
}

func files() []Field {
	const at, where = "files[].", "pool.files[]."
	return []Field{
		{Path: "files", Why: "At most 32 for a node.", open: true, use: few},
		{Path: at + "path", Where: where + "path", Why: "Below /etc/kubernetes/ or /var/lib/hullmark/, and none of Hullmark's or kubeadm's own files.", required: true, use: filePath},
		{Path: at + "permissions", Where: where + "mode", Why: "Three or four octal digits; no set-user-ID.", use: permissions},
		{Path: at + "encoding", Where: where + "content", Why: "Content is decoded, also of gzip.", use: encoding},
		{Path: at + "content", Where: where + "content", Why: "Text, of at most 128 KiB. It is public.", use: content},
		no(at+"owner", "Files are root's; leave it out.", "root:root"),
		no(at+"append", "A file is placed whole; write all of it in content.", false),
		no(at+"contentFrom", "What user data holds is public, so nothing of a Secret is put there; give a pod the Secret."),
		no(at+"contentFormat", "Templates are not filled in; write the content itself.", "Raw"),
	}
}

// rows are the fields by their paths.
var rows = func() map[string]Field {
	all := map[string]Field{}
	for _, f := range fields {
		all[f.Path] = f
	}
	return all
}()

// required are the paths of what an object cannot do without, by its own.
var required = func() map[string][]string {
	all := map[string][]string{}
	for _, f := range fields {
		if object := f.Path[:max(0, strings.LastIndex(f.Path, "."))]; f.required {
			all[object] = append(all[object], f.Path)
		}
	}
	return all
}()
