package kubeadm

// The parts of kubeadm's and the kubelet's configuration that InitDocuments and JoinDocuments set. Field by field they are
// those of kubeadm.k8s.io/v1beta4 and kubelet.config.k8s.io/v1beta1; importing the originals would link Kubernetes into the
// agent.

const (
	kubeadmAPI = "kubeadm.k8s.io/v1beta4"
	kubeletAPI = "kubelet.config.k8s.io/v1beta1"
)

type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

type initConfiguration struct {
	meta             `json:",inline"`
	NodeRegistration nodeRegistration `json:"nodeRegistration"`
	LocalAPIEndpoint endpoint         `json:"localAPIEndpoint"`
	SkipPhases       []string         `json:"skipPhases,omitempty"`
	Patches          directory        `json:"patches"`
	Timeouts         *timeouts        `json:"timeouts,omitempty"`
}

type joinConfiguration struct {
	meta             `json:",inline"`
	NodeRegistration nodeRegistration `json:"nodeRegistration"`
	Discovery        discovery        `json:"discovery"`
	// ControlPlane is a control plane's.
	ControlPlane *joinControlPlane `json:"controlPlane,omitempty"`
	Patches      directory         `json:"patches"`
	Timeouts     *timeouts         `json:"timeouts,omitempty"`
}

type joinControlPlane struct {
	LocalAPIEndpoint endpoint `json:"localAPIEndpoint"`
}

type discovery struct {
	File              discoveryFile `json:"file"`
	TLSBootstrapToken string        `json:"tlsBootstrapToken"`
}

type discoveryFile struct {
	KubeConfigPath string `json:"kubeConfigPath"`
}

type nodeRegistration struct {
	Name                  string   `json:"name"`
	CRISocket             string   `json:"criSocket"`
	Taints                *[]taint `json:"taints,omitempty"`
	IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
	ImagePullPolicy       string   `json:"imagePullPolicy"`
	// KubeletExtraArgs are flags of the kubelet.
	KubeletExtraArgs []argument `json:"kubeletExtraArgs,omitempty"`
}

type taint struct {
	Key    string `json:"key"`
	Effect string `json:"effect"`
}

type endpoint struct {
	AdvertiseAddress string `json:"advertiseAddress"`
	BindPort         int    `json:"bindPort"`
}

type directory struct {
	Directory string `json:"directory"`
}

// timeouts are durations in Go's notation.
type timeouts struct {
	ControlPlaneComponentHealthCheck string `json:"controlPlaneComponentHealthCheck"`
	KubeletHealthCheck               string `json:"kubeletHealthCheck"`
	KubernetesAPICall                string `json:"kubernetesAPICall"`
	EtcdAPICall                      string `json:"etcdAPICall"`
	TLSBootstrap                     string `json:"tlsBootstrap"`
	Discovery                        string `json:"discovery"`
}

type clusterConfiguration struct {
	meta                 `json:",inline"`
	ClusterName          string     `json:"clusterName,omitempty"`
	KubernetesVersion    string     `json:"kubernetesVersion"`
	ImageRepository      string     `json:"imageRepository"`
	ControlPlaneEndpoint string     `json:"controlPlaneEndpoint"`
	EncryptionAlgorithm  string     `json:"encryptionAlgorithm,omitempty"`
	Networking           networking `json:"networking"`
	APIServer            apiServer  `json:"apiServer"`
	ControllerManager    component  `json:"controllerManager"`
	Scheduler            component  `json:"scheduler"`
	Etcd                 *etcd      `json:"etcd,omitempty"`
}

type networking struct {
	ServiceSubnet string `json:"serviceSubnet"`
	PodSubnet     string `json:"podSubnet,omitempty"`
	DNSDomain     string `json:"dnsDomain"`
}

type apiServer struct {
	CertSANs  []string   `json:"certSANs,omitempty"`
	ExtraArgs []argument `json:"extraArgs,omitempty"`
	ExtraEnvs []argument `json:"extraEnvs,omitempty"`
}

type component struct {
	ExtraArgs []argument `json:"extraArgs,omitempty"`
	ExtraEnvs []argument `json:"extraEnvs,omitempty"`
}

type argument struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type etcd struct {
	Local localEtcd `json:"local"`
}

type localEtcd struct {
	ExtraArgs      []argument `json:"extraArgs,omitempty"`
	DataDir        string     `json:"dataDir"`
	ServerCertSANs []string   `json:"serverCertSANs,omitempty"`
	PeerCertSANs   []string   `json:"peerCertSANs,omitempty"`
}

type kubeletConfiguration struct {
	meta               `json:",inline"`
	CgroupDriver       string `json:"cgroupDriver"`
	VolumePluginDir    string `json:"volumePluginDir"`
	ResolvConf         string `json:"resolvConf"`
	ServerTLSBootstrap bool   `json:"serverTLSBootstrap"`
	RotateCertificates bool   `json:"rotateCertificates"`
}
