package render

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// The API groups of the documents that an operator may override.
const (
	kubeadmAPI = "kubeadm.k8s.io/v1beta4"
	kubeletAPI = "kubelet.config.k8s.io/v1beta1"
)

// kind is what is known of one kind of document.
type kind struct {
	api string
	// owned are the fields that Hullmark sets, by path, with what the operator can do instead; an empty text means nothing. An owned field owns all below it.
	owned map[string]string
	// arguments are the flags of programs that Hullmark sets, by the path of their list.
	arguments map[string]map[string]string
}

// kubeletArguments are the kubelet's flags that Hullmark or kubeadm set, or that would undo a field that Hullmark owns.
var kubeletArguments = map[string]string{
	"node-labels": "use the pool's labels", "register-with-taints": "use the pool's taints",
	"hostname-override": "use the member's name", "config": "override the KubeletConfiguration", "config-dir": "override the KubeletConfiguration",
	"kubeconfig": "", "bootstrap-kubeconfig": "", "cert-dir": "", "root-dir": "", "tls-cert-file": "", "tls-private-key-file": "",
	"rotate-certificates": "", "rotate-server-certificates": "", "container-runtime-endpoint": "", "cgroup-driver": "",
	"volume-plugin-dir": "", "resolv-conf": "", "pod-manifest-path": "", "client-ca-file": "", "anonymous-auth": "", "authorization-mode": "",
}

// kinds are the documents that can be overridden.
var kinds = map[string]kind{
	"InitConfiguration": {
		api: kubeadmAPI,
		owned: map[string]string{
			"nodeRegistration.name": "use the member's name", "nodeRegistration.taints": "use the pool's taints", "nodeRegistration.criSocket": "",
			"localAPIEndpoint": "use controlPlane.advertiseAddress", "patches": "", "skipPhases": "", "bootstrapTokens": "", "certificateKey": "", "dryRun": "",
		},
		arguments: map[string]map[string]string{"nodeRegistration.kubeletExtraArgs": kubeletArguments},
	},
	"JoinConfiguration": {
		api: kubeadmAPI,
		owned: map[string]string{
			"nodeRegistration.name": "use the member's name", "nodeRegistration.taints": "use the pool's taints", "nodeRegistration.criSocket": "",
			"discovery": "", "caCertPath": "", "controlPlane": "use the pool's role", "patches": "", "skipPhases": "", "dryRun": "",
		},
		arguments: map[string]map[string]string{"nodeRegistration.kubeletExtraArgs": kubeletArguments},
	},
	"ClusterConfiguration": {
		api: kubeadmAPI,
		owned: map[string]string{
			"kubernetesVersion": "use kubernetesVersion", "clusterName": "use name", "controlPlaneEndpoint": "use controlPlane.endpoint",
			"networking.podSubnet": "use network.podSubnet", "networking.serviceSubnet": "use network.serviceSubnet", "apiServer.certSANs": "use controlPlane.sans",
			"certificatesDir": "", "caCertificateValidityPeriod": "", "certificateValidityPeriod": "", "imageRepository": "", "dns.imageRepository": "", "dns.imageTag": "", "proxy": "",
			"etcd.external": "", "etcd.local.dataDir": "", "etcd.local.imageRepository": "", "etcd.local.imageTag": "",
		},
		arguments: map[string]map[string]string{
			// Each of these would change who may ask for certificates, or who a certificate stands for.
			"apiServer.extraArgs": {
				"authorization-mode": "", "authorization-config": "", "enable-bootstrap-token-auth": "", "authentication-config": "",
				"enable-admission-plugins": "", "disable-admission-plugins": "", "admission-control-config-file": "", "client-ca-file": "",
				"anonymous-auth": "", "secure-port": "", "bind-address": "", "tls-cert-file": "", "tls-private-key-file": "",
				"kubelet-certificate-authority": "", "kubelet-client-certificate": "", "kubelet-client-key": "",
			},
			"controllerManager.extraArgs": {
				"cluster-signing-cert-file": "", "cluster-signing-key-file": "", "root-ca-file": "",
				"cluster-signing-kubelet-serving-cert-file": "", "cluster-signing-kubelet-serving-key-file": "",
				"cluster-signing-kubelet-client-cert-file": "", "cluster-signing-kubelet-client-key-file": "",
				"cluster-signing-kube-apiserver-client-cert-file": "", "cluster-signing-kube-apiserver-client-key-file": "",
				"cluster-signing-legacy-unknown-cert-file": "", "cluster-signing-legacy-unknown-key-file": "",
			},
			"scheduler.extraArgs":  {},
			"etcd.local.extraArgs": {"data-dir": ""},
		},
	},
	"KubeletConfiguration": {
		api: kubeletAPI,
		owned: map[string]string{
			"serverTLSBootstrap": "", "rotateCertificates": "", "tlsCertFile": "", "tlsPrivateKeyFile": "",
			"authentication.anonymous": "", "authentication.x509": "", "authorization.mode": "",
			"cgroupDriver": "", "containerRuntimeEndpoint": "", "volumePluginDir": "", "resolvConf": "",
			"staticPodPath": "", "staticPodURL": "", "registerWithTaints": "use the pool's taints",
		},
	},
}

// apply merges the overrides into our documents, which it changes. Only the kinds of our documents are allowed, each once.
func apply(documents map[string]map[string]any, overrides []Override) error {
	seen := map[string]bool{}
	for i, o := range overrides {
		name, _ := o["kind"].(string)
		ours, ok := documents[name]
		if !ok || o["apiVersion"] != kinds[name].api {
			return fmt.Errorf("overrides[%d]: %.80v %.80v: want %s", i, o["apiVersion"], o["kind"], wanted(documents))
		}
		if seen[name] {
			return fmt.Errorf("overrides[%d]: a second %s: merge it into the first", i, name)
		}
		seen[name] = true
		if err := kinds[name].merge(ours, o, ""); err != nil {
			return fmt.Errorf("overrides[%d] (%s): %w", i, name, err)
		}
	}
	return nil
}

// wanted lists the documents that may be overridden.
func wanted(documents map[string]map[string]any) string {
	var names []string
	for name := range sorted(documents) {
		names = append(names, kinds[name].api+" "+name)
	}
	return strings.Join(names, ", or ")
}

// merge writes the fields of theirs, which stand below path, into ours: objects field by field, lists of arguments and of ignored checks by adding
// to them, and anything else in place of ours.
func (k kind) merge(ours, theirs map[string]any, path string) error {
	for name, value := range sorted(theirs) {
		if err := k.field(ours, name, value, path+name); err != nil {
			return err
		}
	}
	return nil
}

// field merges one field, whose whole path is at.
func (k kind) field(ours map[string]any, name string, value any, at string) (err error) {
	hint, owned := k.owned[at]
	taken, arguments := k.arguments[at]
	object, isObject := value.(map[string]any)
	switch {
	case owned && !reflect.DeepEqual(ours[name], value):
		return clashes(at, hint)
	case owned:
	case arguments:
		ours[name], err = addArguments(ours[name], value, taken, at)
	case at == ignored:
		ours[name], err = addIgnored(ours[name], value, at)
	case isObject:
		into, ok := ours[name].(map[string]any)
		if !ok {
			into = map[string]any{}
		}
		ours[name] = into
		return k.merge(into, object, at+".")
	case value == nil:
		return fmt.Errorf("%s: it has no value; give it one, or leave it out", at)
	case k.holdsOwned(at):
		return fmt.Errorf("%s: want an object", at)
	default:
		ours[name] = value
	}
	return err
}

// clashes is the error of a field that is not the operator's.
func clashes(at, hint string) error {
	if hint == "" {
		hint = "leave it out"
	}
	return fmt.Errorf("%s: Hullmark sets it itself; %s", at, hint)
}

// holdsOwned reports whether a field holds others that are not the operator's, so that nothing else may stand in its place.
func (k kind) holdsOwned(at string) bool {
	inside := func(other string) bool { return strings.HasPrefix(other, at+".") }
	return slices.ContainsFunc(slices.Collect(maps.Keys(k.owned)), inside) || slices.ContainsFunc(slices.Collect(maps.Keys(k.arguments)), inside)
}

// addArguments adds a program's flags to ours. A program takes an underscore for a hyphen.
func addArguments(ours, theirs any, taken map[string]string, at string) (any, error) {
	ourList, _ := ours.([]any)
	theirList, ok := theirs.([]any)
	if !ok {
		return nil, fmt.Errorf("%s: want a list of objects with name and value", at)
	}
	set := map[string]bool{}
	for _, a := range ourList {
		set[argumentName(a)] = true
	}
	for i, a := range theirList {
		name := argumentName(a)
		if !argumentPattern.MatchString(name) {
			return nil, fmt.Errorf("%s[%d]: want an object with name and value, the name of lower-case letters, digits and hyphens", at, i)
		}
		hint, owned := taken[name]
		if owned || set[name] {
			return nil, clashes(at+": "+name, hint)
		}
	}
	return slices.Concat(ourList, theirList), nil
}

// argumentPattern is how the flags of Kubernetes' programs and of etcd are named.
var argumentPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// argumentName returns an argument's name, or nothing.
func argumentName(argument any) string {
	object, _ := argument.(map[string]any)
	name, _ := object["name"].(string)
	return strings.ReplaceAll(name, "_", "-")
}

// ignored is the list of kubeadm's checks that do not count; one of ours is in it, and must stay.
const ignored = "nodeRegistration.ignorePreflightErrors"

// addIgnored adds checks to ours that kubeadm shall ignore.
func addIgnored(ours, theirs any, at string) (any, error) {
	list, ok := theirs.([]any)
	if !ok {
		return nil, fmt.Errorf("%s: want a list", at)
	}
	all, _ := ours.([]any)
	for _, check := range list {
		if !slices.ContainsFunc(all, func(a any) bool { return reflect.DeepEqual(a, check) }) {
			all = append(all, check)
		}
	}
	return all, nil
}
