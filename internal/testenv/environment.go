// Package testenv runs a real Kubernetes API for tests: etcd, kube-apiserver and
// kube-controller-manager as ordinary processes on loopback, with the keys of a
// new cluster file and the settings that kubeadm would give them. No node runs.
package testenv

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/internal/cache"
	"github.com/hullmark/hullmark/kubeadm"
)

// Environment is one running API. Its methods are for one goroutine; its configurations are for any.
type Environment struct {
	// Cluster holds the keys; all but those of Hullmark's own are in use.
	Cluster *cluster.Cluster
	// Address is the API server's host:port. Its certificate is for kubernetes, localhost and 127.0.0.1.
	Address string

	// bin is the folder of the programs, dir that of all files.
	bin, dir string
	// serverBin is that of the API server, if it is another one, and serverFlags are further flags of it.
	serverBin   string
	serverFlags []string
	// managerFlags are further flags of the controllers.
	managerFlags []string
	// etcdURL is where etcd serves.
	etcdURL                  string
	etcd, apiserver, manager *Process
}

// Programs returns the folder of the programs of this checkout's Kubernetes
// bundle. It is compiled, which takes minutes, unless a build did so before.
func Programs(ctx context.Context) (string, error) {
	source, err := checkout()
	if err != nil {
		return "", err
	}
	store, err := cache.Open()
	if err != nil {
		return "", err
	}
	o := build.Options{Source: source, LockFile: filepath.Join(source, "hullmark.lock"), Store: store, Progress: build.NewProgress(os.Stderr, time.Now)}
	l, err := build.ReadLock(o)
	if err != nil {
		return "", err
	}
	root, _, err := build.Kubernetes(ctx, o, l)
	return filepath.Join(root, "usr", "lib", "kubernetes", "bin"), err
}

// checkout finds the folder that holds hullmark.lock, above the working folder, which is a package's in its tests.
func checkout() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hullmark.lock")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no folder above %s holds hullmark.lock: run in a checkout", start)
		}
	}
}

// Start runs the API of a new cluster, as StartFor does.
func Start(ctx context.Context, dir string) (*Environment, error) {
	c, err := cluster.New()
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	return StartFor(ctx, dir, c)
}

// StartFor runs the API of a cluster. Its files are below dir, which exists and is empty, or
// holds the data of an etcd in the folder etcd, which it goes on with. It
// returns when the API answers as ready. Stop ends it. Programs write their logs to dir.
func StartFor(ctx context.Context, dir string, c *cluster.Cluster) (*Environment, error) {
	return StartOn(ctx, dir, c, "")
}

// StartOn runs the API of a cluster as StartFor does, over an etcd that runs already: etcd has the URLs of its members,
// separated by commas.
func StartOn(ctx context.Context, dir string, c *cluster.Cluster, etcd string) (*Environment, error) {
	bin, err := Programs(ctx)
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	r := &Environment{Cluster: c, bin: bin, dir: dir, etcdURL: etcd}
	for _, step := range []func(context.Context) error{r.writeKeys, r.startEtcd, r.StartAPI, r.startManager, r.letAdminsIn} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("testenv: %w", errors.Join(err, r.Stop()))
		}
	}
	return r, nil
}

// Stop ends all programs.
func (r *Environment) Stop() error {
	return errors.Join(r.manager.Stop(), r.apiserver.Stop(), r.etcd.Stop())
}

// file returns the path of one of the environment's files.
func (r *Environment) file(name string) string { return filepath.Join(r.dir, name) }

// pki returns the path of a file that kubeadm keeps below /etc/kubernetes/pki.
func (r *Environment) pki(name string) string { return r.file("etc/kubernetes/pki/" + name) }

// writeKeys writes what a control plane's disk holds, and the leaves that kubeadm would make.
func (r *Environment) writeKeys(context.Context) error {
	files, err := r.Cluster.Files()
	if err != nil {
		return err
	}
	for _, f := range files {
		path := r.file(f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Content, os.FileMode(f.Mode)); err != nil {
			return err
		}
	}
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return errors.Join(
		r.writeLeaf("apiserver", r.Cluster.Kubernetes.Authority, leaf{name: "kube-apiserver", usages: both[:1], loopback: true}),
		r.writeLeaf("apiserver-kubelet-client", r.Cluster.Kubernetes.Authority, leaf{name: "kube-apiserver-kubelet-client", groups: []string{"kubeadm:cluster-admins"}, usages: both[1:]}),
		r.writeLeaf("etcd/server", r.Cluster.Etcd.Authority, leaf{name: "etcd", usages: both, loopback: true}),
		r.writeLeaf("apiserver-etcd-client", r.Cluster.Etcd.Authority, leaf{name: "kube-apiserver-etcd-client", usages: both[1:]}),
		r.writeLeaf("front-proxy-client", r.Cluster.FrontProxy.Authority, leaf{name: "front-proxy-client", usages: both[1:]}),
	)
}

// FreeAddress returns a loopback address that nothing listens on.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// launch starts one of the bundle's programs.
func (r *Environment) launch(name string, args ...string) (*Process, error) {
	return Launch(r.dir, exec.Command(filepath.Join(r.bin, name), args...))
}

// launchComponent starts a program with the flags that kubeadm gives it itself, and those of Hullmark's documents in their
// place (cmd/kubeadm/app/util, ArgumentsToCommand).
func (r *Environment) launchComponent(field, name string, own ...string) (*Process, error) {
	extra, err := r.extraArguments(field)
	if err != nil {
		return nil, err
	}
	args := slices.DeleteFunc(own, func(arg string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		return slices.ContainsFunc(extra, func(e string) bool { return strings.HasPrefix(e, "--"+name+"=") })
	})
	bin := r.bin
	if field == "apiServer" {
		bin, extra = cmp.Or(r.serverBin, bin), append(extra, r.serverFlags...)
	}
	return Launch(r.dir, exec.Command(filepath.Join(bin, name), append(args, extra...)...))
}

// extraArguments are the flags that Hullmark's documents give a component, with the environment's files in the place of a node's.
func (r *Environment) extraArguments(field string) ([]string, error) {
	documents, err := kubeadm.InitDocuments(kubeadm.Params{
		NodeName: "testenv", AdvertiseAddress: netip.MustParseAddr("127.0.0.1"),
		ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/16"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"),
	})
	if err != nil {
		return nil, err
	}
	var components map[string]any
	if err := kubeadm.Find(documents, "ClusterConfiguration", &components); err != nil {
		return nil, err
	}
	component, _ := components[field].(map[string]any)
	list, _ := component["extraArgs"].([]any)
	var args []string
	for _, each := range list {
		argument, _ := each.(map[string]any)
		args = append(args, strings.ReplaceAll(fmt.Sprintf("--%s=%s", argument["name"], argument["value"]), "/etc/kubernetes/pki/", r.file("etc/kubernetes/pki")+"/"))
	}
	return args, nil
}

func (r *Environment) startEtcd(ctx context.Context) error {
	if r.etcdURL != "" {
		return nil
	}
	client, err := FreeAddress()
	if err != nil {
		return err
	}
	peer, err := FreeAddress()
	if err != nil {
		return err
	}
	r.etcdURL = "https://" + client
	r.etcd, err = r.launch("etcd",
		"--data-dir="+r.file("etcd"), "--name=testenv", "--initial-cluster=testenv=http://"+peer,
		"--listen-client-urls="+r.etcdURL, "--advertise-client-urls="+r.etcdURL,
		"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer,
		"--client-cert-auth", "--trusted-ca-file="+r.pki("etcd/ca.crt"), "--cert-file="+r.pki("etcd/server.crt"), "--key-file="+r.pki("etcd/server.key"),
		// Tests lose nothing in a power cut.
		"--unsafe-no-fsync")
	return err
}

// StartAPI starts the API server, again after StopAPI on the same address, and returns when it is ready.
func (r *Environment) StartAPI(ctx context.Context) (err error) {
	if r.Address == "" {
		if r.Address, err = FreeAddress(); err != nil {
			return err
		}
	}
	host, port, err := net.SplitHostPort(r.Address)
	if err != nil {
		return err
	}
	r.apiserver, err = r.launchComponent("apiServer", "kube-apiserver",
		"--bind-address="+host, "--secure-port="+port, "--advertise-address="+host, "--endpoint-reconciler-type=none",
		"--etcd-servers="+r.etcdURL, "--etcd-cafile="+r.pki("etcd/ca.crt"),
		"--etcd-certfile="+r.pki("apiserver-etcd-client.crt"), "--etcd-keyfile="+r.pki("apiserver-etcd-client.key"),
		"--client-ca-file="+r.pki("ca.crt"), "--tls-cert-file="+r.pki("apiserver.crt"), "--tls-private-key-file="+r.pki("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+r.pki("sa.pub"), "--service-account-signing-key-file="+r.pki("sa.key"),
		"--kubelet-client-certificate="+r.pki("apiserver-kubelet-client.crt"), "--kubelet-client-key="+r.pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--requestheader-client-ca-file="+r.pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+r.pki("front-proxy-client.crt"), "--proxy-client-key-file="+r.pki("front-proxy-client.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true", "--allow-privileged=true")
	if err != nil {
		return err
	}
	return r.awaitReady(ctx)
}

// EtcdURL returns where its etcd serves clients.
func (r *Environment) EtcdURL() string { return r.etcdURL }

// Programs returns the folder of the Kubernetes programs that it runs.
func (r *Environment) Programs() string { return r.bin }

// Processes returns the programs that run.
func (r *Environment) Processes() []*Process {
	return slices.DeleteFunc([]*Process{r.etcd, r.apiserver, r.manager}, func(p *Process) bool { return p == nil })
}

// StopAPI kills the API server alone; its clients see an outage.
func (r *Environment) StopAPI() error { return r.apiserver.Stop() }

// Reboot lets the API server and the controller manager go on with what the cluster file says by now, as a control plane's next boot does.
func (r *Environment) Reboot(ctx context.Context) error {
	if err := errors.Join(r.manager.Stop(), r.StopAPI()); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{r.writeKeys, r.StartAPI, r.startManager} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("testenv: %w", err)
		}
	}
	return nil
}

// awaitReady waits until the API server says that it is ready and has made its own namespaces.
func (r *Environment) awaitReady(ctx context.Context) error {
	return r.awaitPages(ctx, r.apiserver, "/readyz", "/api/v1/namespaces/kube-system")
}

// awaitPages waits until a program made the API server have these pages.
func (r *Environment) awaitPages(ctx context.Context, by *Process, paths ...string) error {
	config, err := r.Config("testenv", "system:masters")
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for _, path := range paths {
		if err := by.Await(ctx, func() error { return get(ctx, client, config.Host+path) }); err != nil {
			return err
		}
	}
	return nil
}

func (r *Environment) startManager(ctx context.Context) error {
	config, err := r.Config("system:kube-controller-manager")
	if err != nil {
		return err
	}
	kubeconfig := r.file("controller-manager.conf")
	if err := writeKubeconfig(kubeconfig, config); err != nil {
		return err
	}
	address, err := FreeAddress()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	r.manager, err = r.launchComponent("controllerManager", "kube-controller-manager", append([]string{
		"--bind-address=" + host, "--secure-port=" + port, "--kubeconfig=" + kubeconfig, "--leader-elect=false",
		"--use-service-account-credentials=true",
		"--root-ca-file=" + r.pki("ca.crt"), "--service-account-private-key-file=" + r.pki("sa.key"),
		"--cluster-signing-cert-file=" + r.pki("ca.crt"), "--cluster-signing-key-file=" + r.pki("ca.key"),
	}, r.managerFlags...)...)
	if err != nil {
		return err
	}
	// Once one controller did its work all are made; before, the program ends at the first call that fails.
	return r.awaitPages(ctx, r.manager, "/api/v1/namespaces/default/serviceaccounts/default")
}

// letAdminsIn gives operators' certificates their permissions, as kubeadm does.
func (r *Environment) letAdminsIn(ctx context.Context) error {
	return r.Apply(ctx, []byte(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:cluster-admins"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "kubeadm:cluster-admins"}]
`))
}

// Apply gives the API a manifest, a YAML stream, as a control-plane node applies its own.
func (r *Environment) Apply(ctx context.Context, manifest []byte) error {
	kubectl, err := r.Kubectl(ctx, "apply", "--server-side", "-f", "-")
	if err != nil {
		return err
	}
	kubectl.Stdin = bytes.NewReader(manifest)
	if out, err := kubectl.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w: %s", err, out)
	}
	return nil
}

// Kubectl returns a command of kubectl's as an administrator who may do everything.
func (r *Environment) Kubectl(ctx context.Context, args ...string) (*exec.Cmd, error) {
	config, err := r.Config("testenv", "system:masters")
	if err != nil {
		return nil, err
	}
	kubeconfig := r.file("testenv.conf")
	if err := writeKubeconfig(kubeconfig, config); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, filepath.Join(r.bin, "kubectl"), append([]string{"--kubeconfig=" + kubeconfig}, args...)...), nil
}

// Config returns the configuration of a client that the API holds for this user, who is in these groups.
func (r *Environment) Config(user string, groups ...string) (*rest.Config, error) {
	certificate, key, err := sign(r.Cluster.Kubernetes.Authority, leaf{name: user, groups: groups, usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return nil, err
	}
	config := r.Anonymous()
	config.CertData, config.KeyData = certificate, key
	return config, nil
}

// Kubeconfig returns such a configuration as a file of its own.
func (r *Environment) Kubeconfig(user string, groups ...string) ([]byte, error) {
	config, err := r.Config(user, groups...)
	if err != nil {
		return nil, err
	}
	return clientcmd.Write(kubeconfigOf(config))
}

// Anonymous returns the configuration of a client that nothing vouches for; a token can be added to it.
func (r *Environment) Anonymous() *rest.Config {
	return &rest.Config{
		Host:            "https://" + r.Address,
		TLSClientConfig: rest.TLSClientConfig{CAData: r.Cluster.KubernetesCA(), ServerName: "kubernetes"},
		QPS:             -1,
	}
}

func writeKubeconfig(path string, config *rest.Config) error {
	return clientcmd.WriteToFile(kubeconfigOf(config), path)
}

func kubeconfigOf(config *rest.Config) clientcmdapi.Config {
	const name = "testenv"
	return clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server: config.Host, TLSServerName: config.ServerName, CertificateAuthorityData: config.CAData,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
}
