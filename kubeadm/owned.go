package kubeadm

// Kind is what is known of one kind of document that kubeadm reads.
type Kind struct {
	// API is its group and version.
	API string
	// Owned are the fields that Hullmark sets, by path, with what the operator can do instead; an empty text means nothing, and
	// that documents of his own say the same there as ours. An owned field owns all below it.
	Owned map[string]string
	// Arguments are the flags of programs that Hullmark sets, by the path of their list.
	Arguments map[string]map[string]string
}

// kubeletArguments are the kubelet's flags that Hullmark or kubeadm set, or that would undo a field that Hullmark owns.
var kubeletArguments = map[string]string{
	"node-labels": "use the pool's labels", "register-with-taints": "use the pool's taints",
	"hostname-override": "use the member's name", providerFlag: "use the member's providerID, or a voucher's", "config": "", "config-dir": "",
	"kubeconfig": "", "bootstrap-kubeconfig": "", "cert-dir": "", "root-dir": "", "tls-cert-file": "", "tls-private-key-file": "",
	"rotate-certificates": "", "rotate-server-certificates": "", "container-runtime-endpoint": "", "cgroup-driver": "",
	"volume-plugin-dir": "", "resolv-conf": "", "pod-manifest-path": "", "client-ca-file": "", "anonymous-auth": "", "authorization-mode": "",
}

// Kinds are the documents that an operator may override, or write himself.
var Kinds = map[string]Kind{
	"InitConfiguration": {
		API: kubeadmAPI,
		Owned: map[string]string{
			"nodeRegistration.name": "use the member's name", "nodeRegistration.taints": "use the pool's taints", "nodeRegistration.criSocket": "",
			"localAPIEndpoint": "use controlPlane.advertiseAddress", "patches": "", "skipPhases": "", "bootstrapTokens": "", "certificateKey": "", "dryRun": "",
		},
		Arguments: map[string]map[string]string{"nodeRegistration.kubeletExtraArgs": kubeletArguments},
	},
	"JoinConfiguration": {
		API: kubeadmAPI,
		Owned: map[string]string{
			"nodeRegistration.name": "use the member's name", "nodeRegistration.taints": "use the pool's taints", "nodeRegistration.criSocket": "",
			"discovery": "", "caCertPath": "", "controlPlane": "use the pool's role", "patches": "", "skipPhases": "", "dryRun": "",
		},
		Arguments: map[string]map[string]string{"nodeRegistration.kubeletExtraArgs": kubeletArguments},
	},
	"ClusterConfiguration": {
		API: kubeadmAPI,
		Owned: map[string]string{
			"kubernetesVersion": "use kubernetesVersion", "clusterName": "use name", "controlPlaneEndpoint": "use controlPlane.endpoint",
			"networking.podSubnet": "use network.podSubnet", "networking.serviceSubnet": "use network.serviceSubnet", "apiServer.certSANs": "use controlPlane.sans",
			"certificatesDir": "", "caCertificateValidityPeriod": "", "certificateValidityPeriod": "", "imageRepository": "", "dns.imageRepository": "", "dns.imageTag": "", "proxy": "",
			"etcd.external": "", "etcd.local.dataDir": "", "etcd.local.imageRepository": "", "etcd.local.imageTag": "",
		},
		Arguments: map[string]map[string]string{
			// Each of these would change who may ask for certificates, or who a certificate stands for.
			"apiServer.extraArgs": {
				"authorization-mode": "", "authorization-config": "", "enable-bootstrap-token-auth": "", "authentication-config": "",
				"enable-admission-plugins": "", "disable-admission-plugins": "", "admission-control-config-file": "", "client-ca-file": "",
				"anonymous-auth": "", "secure-port": "", "bind-address": "", "tls-cert-file": "", "tls-private-key-file": "",
				"kubelet-certificate-authority": "", "kubelet-client-certificate": "", "kubelet-client-key": "",
				"requestheader-client-ca-file": "", "requestheader-allowed-names": "",
				// Which minor release a control plane behaves as is a matter of its updates.
				"emulated-version": "", "min-compatibility-version": "",
			},
			"controllerManager.extraArgs": {
				"cluster-signing-cert-file": "", "cluster-signing-key-file": "", "root-ca-file": "",
				"cluster-signing-kubelet-serving-cert-file": "", "cluster-signing-kubelet-serving-key-file": "",
				"cluster-signing-kubelet-client-cert-file": "", "cluster-signing-kubelet-client-key-file": "",
				"cluster-signing-kube-apiserver-client-cert-file": "", "cluster-signing-kube-apiserver-client-key-file": "",
				"cluster-signing-legacy-unknown-cert-file": "", "cluster-signing-legacy-unknown-key-file": "",
				"emulated-version": "", "min-compatibility-version": "",
			},
			"scheduler.extraArgs":  {"emulated-version": "", "min-compatibility-version": ""},
			"etcd.local.extraArgs": {"data-dir": ""},
		},
	},
	"KubeletConfiguration": {
		API: kubeletAPI,
		Owned: map[string]string{
			"serverTLSBootstrap": "", "rotateCertificates": "", "tlsCertFile": "", "tlsPrivateKeyFile": "",
			"authentication.anonymous": "", "authentication.x509": "", "authorization.mode": "",
			"cgroupDriver": "", "containerRuntimeEndpoint": "", "volumePluginDir": "", "resolvConf": "",
			"providerID": "", "staticPodPath": "", "staticPodURL": "", "registerWithTaints": "use the pool's taints",
		},
	},
}
