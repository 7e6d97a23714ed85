package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/tools/capi/config"
)

// endpoint is the cluster's address in its network.
const endpoint = "10.0.2.21"

// hardware is what machines of one kind are. Each kind has a measurement document of its own.
type hardware struct {
	CPUs, Memory int
	Disk         string
}

// An emulated processor takes a whole real one: the control plane needs one more than a worker.
var (
	planeHardware  = hardware{2, 4096, "10G"}
	workerHardware = hardware{1, 2048, "10G"}
)

// namespace is where the Cluster is declared.
const namespace = "default"

// The blocks of the page's journey.
const (
	makeCluster = iota
	enrol
	declare
	lend
	begun
	joined
	blocks
)

func (d *demo) build(ctx context.Context) error {
	if err := d.hullmark(ctx, "build", "--relock", "--out", d.out); err != nil {
		return err
	}
	if err := d.measure(ctx, "control-plane", planeHardware); err != nil {
		return err
	}
	return d.measure(ctx, "workers", workerHardware)
}

// measure predicts the registers of machines of one kind.
func (d *demo) measure(ctx context.Context, name string, h hardware) error {
	file := d.path(name + ".json")
	machine := map[string]any{
		"schema": "hullmark.machine/v1", "tools": filepath.Join(d.out, "tools"), "memoryMiB": h.Memory, "cpus": h.CPUs, "stateDisk": h.Disk, "learned": name + ".learned.json",
	}
	text, err := json.MarshalIndent(machine, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n", file, text)
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return err
	}
	if err := d.hullmark(ctx, "learn", "--machine", file); err != nil {
		return err
	}
	return d.hullmark(ctx, "measure", filepath.Join(d.out, "hullmark.raw"), "--machine", file, "--out", d.path(name+".measurements.json"))
}

// random returns a secret that nobody has seen.
func random(size int) ([]byte, error) {
	secret := make([]byte, size)
	_, err := rand.Read(secret)
	return secret, err
}

// makeCluster protects the cluster file with a passphrase that only this demo's folder holds.
func (d *demo) makeCluster(ctx context.Context) error {
	passphrase, err := random(16)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.path("passphrase"), []byte(hex.EncodeToString(passphrase)+"\n"), 0o600); err != nil {
		return err
	}
	if err := d.journey.Run(ctx, makeCluster); err != nil {
		return err
	}
	text, err := os.ReadFile(d.path("node.json"))
	if err != nil {
		return err
	}
	config, err := hullmark.ParseNodeConfig(text)
	d.root = config.ClusterRoot.String()
	return err
}

// manage starts the API server and etcd of the management cluster, and gives it core's kinds and ours.
func (d *demo) manage(ctx context.Context) (err error) {
	if d.management, err = testenv.Start(ctx, d.path("management")); err != nil {
		return err
	}
	admin, err := d.management.Kubeconfig("demo", "system:masters")
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.path("management.conf"), admin, 0o600); err != nil {
		return err
	}
	core, err := module(ctx, "sigs.k8s.io/cluster-api")
	if err != nil {
		return err
	}
	if err := d.kubectl(ctx, "apply", "--server-side", "-f", filepath.Join(core, "core", "config", "crd", "bases")); err != nil {
		return err
	}
	return d.components(ctx)
}

// module is the folder of a module that this one requires.
func module(ctx context.Context, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", path)
	cmd.Dir = filepath.Join("tools", "capi")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// components applies what clusterctl would: kinds, accounts and their roles. The Deployments get no pods, as the management cluster has
// no nodes: their programs run beside it, by their accounts.
func (d *demo) components(ctx context.Context) error {
	for _, provider := range config.Providers() {
		text, err := provider.Components("registry.example/hullmark-capi:demo")
		if err != nil {
			return err
		}
		file := d.path(provider.Label + ".yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		if err := d.kubectl(ctx, "apply", "--server-side", "-f", file); err != nil {
			return err
		}
	}
	return nil
}

// asAccount writes a kubeconfig for a program that runs as its Deployment's account.
func (d *demo) asAccount(ctx context.Context, system, account string) (string, error) {
	token, err := d.ask(ctx, "create", "token", account, "--namespace", system, "--duration", "4h")
	if err != nil {
		return "", err
	}
	admin, err := clientcmd.LoadFromFile(d.path("management.conf"))
	if err != nil {
		return "", err
	}
	for _, user := range admin.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: token}
	}
	path := d.path(account + ".conf")
	return path, clientcmd.WriteToFile(*admin, path)
}

// control starts the controllers, and the provider of QEMU machines.
func (d *demo) control(ctx context.Context) error {
	if err := d.startControllers(ctx); err != nil {
		return err
	}
	admin := []string{"KUBECONFIG=" + d.path("management.conf")}
	return d.startAs("qemu", "capi-qemu", admin, "--folder", d.path("machines"), "--program", d.program("hullmark"), "--grace", "5m")
}

// startControllers starts core's controllers, and Hullmark's.
func (d *demo) startControllers(ctx context.Context) error {
	certificate, err := d.webhookCertificate()
	if err != nil {
		return err
	}
	key, err := random(32)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.path("keeper.secret"), []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	admin := []string{"KUBECONFIG=" + d.path("management.conf")}
	// It migrates what earlier releases stored, of which there is nothing.
	if err := d.start("capi-core", admin, "--webhook-cert-dir", certificate, "--webhook-port", port, "--health-addr", "127.0.0.1:0", "--diagnostics-address", "127.0.0.1:0",
		"--skip-crd-migration-phases", "StorageVersionMigration,CleanupManagedFields", "--remote-connection-grace-period", "10m", "--remote-conditions-grace-period", "15m"); err != nil {
		return err
	}
	for provider, more := range map[string][]string{
		"bootstrap":     nil,
		"control-plane": {"--keeper", "local://", "--keeper-secret-file", d.path("keeper.secret")},
	} {
		account := "hullmark-" + provider + "-manager"
		kubeconfig, err := d.asAccount(ctx, "hullmark-"+provider+"-system", account)
		if err != nil {
			return err
		}
		args := append([]string{provider, "--metrics-bind-address", "0", "--health-probe-bind-address", "0"}, more...)
		if err := d.startAs(provider, "capi-manager", []string{"KUBECONFIG=" + kubeconfig}, args...); err != nil {
			return err
		}
	}
	return nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// enrol makes a key that may vouch for workers: its public half goes into the signed policy, the other is sealed to the controllers.
func (d *demo) enrol(ctx context.Context) error {
	if err := d.until(ctx, "the controllers tell what to seal to", func(ctx context.Context) (bool, string, error) {
		recipient, err := d.ask(ctx, "get", "secret", "hullmark-sealing-key", "--namespace", "hullmark-control-plane-system", "--ignore-not-found", "-o", "jsonpath={.data.recipient}")
		return recipient != "", recipient, err
	}); err != nil {
		return err
	}
	if err := d.journey.Run(ctx, enrol); err != nil {
		return err
	}
	return d.know(ctx)
}

//go:embed cluster.yaml
var declaration string

// declare declares the Cluster, and everything that it is made of.
func (d *demo) declare(ctx context.Context) error {
	version, err := d.kubernetesVersion()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := template.Must(template.New("cluster.yaml").Option("missingkey=error").Parse(declaration)).Execute(&text, map[string]any{
		"Endpoint": endpoint, "Plane": planeHardware, "Worker": workerHardware, "Root": d.root, "Version": version, "Image": filepath.Join(d.out, "hullmark.raw"), "Tools": filepath.Join(d.out, "tools"),
	}); err != nil {
		return err
	}
	fmt.Print(text.String())
	if err := os.WriteFile(d.path("prod.yaml"), text.Bytes(), 0o600); err != nil {
		return err
	}
	return d.journey.Run(ctx, declare)
}

// kubernetesVersion is the image's, as its measurement document says.
func (d *demo) kubernetesVersion() (string, error) {
	text, err := os.ReadFile(d.path("control-plane.measurements.json"))
	if err != nil {
		return "", err
	}
	document, err := measurements.Parse(text)
	return document.Image.Kubernetes.String(), err
}

// lend lends the cluster file for the machine that is to be the first: only now is it known which that is.
func (d *demo) lend(ctx context.Context) error { return d.journey.Run(ctx, lend) }

// begun waits for the control plane, and notes in the cluster file what was done.
func (d *demo) begun(ctx context.Context) error {
	if err := d.until(ctx, "the control plane is initialized, and its Machine runs", func(ctx context.Context) (bool, string, error) {
		done, err := d.ask(ctx, "get", "hullmarkcontrolplane/prod-control-plane", "--namespace", namespace, "-o", "jsonpath={.status.initialization.controlPlaneInitialized} {.status.readyReplicas}")
		if err != nil {
			return false, "", err
		}
		seen, err := d.ask(ctx, "get", "hullmarkcontrolplane/prod-control-plane", "--namespace", namespace, "-o", `jsonpath={range .status.conditions[?(@.type=="Begun")]}{.reason}: {.message}{end}`)
		return done == "true 1", done + " " + seen, err
	}); err != nil {
		return err
	}
	if err := d.journey.Run(ctx, begun); err != nil {
		return err
	}
	return show(ctx, d.kubectlPath(), "--kubeconfig", d.path("prod.conf"), "get", "nodes", "-o", "wide")
}

// worker is the one worker's Machine and its Node, once it is the only one, and Ready.
func (d *demo) worker(ctx context.Context) (machine, node, seen string, err error) {
	seen, err = d.ask(ctx, "get", "machines", "--namespace", namespace, "-l", "cluster.x-k8s.io/deployment-name=prod-workers", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.nodeRef.name}/{.status.phase} ready={.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	if err != nil {
		return "", "", "", err
	}
	if strings.Contains(seen, "\n") {
		return "", "", strings.ReplaceAll(seen, "\n", ", "), nil
	}
	machine, rest, _ := strings.Cut(seen, " ")
	node, state, _ := strings.Cut(rest, "/")
	if state != "Running ready=True" {
		node = ""
	}
	if node == "" {
		// What stands in the way is said by these.
		more, err := d.ask(ctx, "get", "hullmarkconfigs", "--namespace", namespace, "-o", `jsonpath={range .items[*].status.conditions[?(@.status=="False")]}{.type}={.reason}; {end}`)
		return "", "", seen + "; " + more, err
	}
	return machine, node, seen, nil
}

// joined waits for the worker, for which nobody does anything.
func (d *demo) joined(ctx context.Context) error {
	if err := d.until(ctx, "the worker is Ready", func(ctx context.Context) (ok bool, seen string, err error) {
		d.workerMachine, d.workerNode, seen, err = d.worker(ctx)
		return d.workerNode != "", seen, err
	}); err != nil {
		return err
	}
	if err := d.journey.Run(ctx, joined); err != nil {
		return err
	}
	return d.look(ctx)
}

// look shows both clusters.
func (d *demo) look(ctx context.Context) error {
	if err := d.kubectl(ctx, "get", "clusters,hullmarkcontrolplanes,machinedeployments,machines,hullmarkmachines,hullmarkconfigs", "--namespace", namespace); err != nil {
		return err
	}
	if err := show(ctx, d.kubectlPath(), "--kubeconfig", d.path("prod.conf"), "get", "nodes", "-o", "custom-columns=NAME:.metadata.name,PROVIDER:.spec.providerID,VERSION:.status.nodeInfo.kubeletVersion"); err != nil {
		return err
	}
	return d.hullmark(ctx, "voucher", "list", "--kubeconfig", d.path("prod.conf"))
}

// replace has the MachineDeployment make another worker, and take the first one away when that is Ready.
func (d *demo) replace(ctx context.Context) error {
	before := d.workerMachine
	after := time.Now().UTC().Format(time.RFC3339)
	if err := d.kubectl(ctx, "patch", "machinedeployment", "prod-workers", "--namespace", namespace, "--type", "merge", "--patch", `{"spec":{"rollout":{"after":"`+after+`"}}}`); err != nil {
		return err
	}
	old := d.workerNode
	if err := d.until(ctx, "another worker is in its place, and it is gone", func(ctx context.Context) (ok bool, seen string, err error) {
		d.workerMachine, d.workerNode, seen, err = d.worker(ctx)
		return d.workerNode != "" && d.workerMachine != before, seen, err
	}); err != nil {
		return err
	}
	if err := d.until(ctx, "its Node and its voucher are gone", func(ctx context.Context) (bool, string, error) {
		nodes, err := d.askOf(ctx, "prod.conf", "get", "nodes", "-o", "name")
		if err != nil {
			return false, "", err
		}
		vouchers, err := d.askOf(ctx, "prod.conf", "get", "configmaps", "--namespace", "hullmark-vouchers", "-o", "name")
		seen := strings.ReplaceAll(nodes+" "+vouchers, "\n", " ")
		return !strings.Contains(nodes, old) && strings.Count(vouchers, "/voucher.") == 1, seen, err
	}); err != nil {
		return err
	}
	return d.look(ctx)
}

// remove deletes the Cluster, and with it everything that was made for it.
func (d *demo) remove(ctx context.Context) error {
	if err := d.kubectl(ctx, "delete", "cluster", "prod", "--namespace", namespace, "--wait=false"); err != nil {
		return err
	}
	if err := d.until(ctx, "nothing of it is left", func(ctx context.Context) (bool, string, error) {
		left, err := d.ask(ctx, "get", "clusters,hullmarkclusters,hullmarkcontrolplanes,machinedeployments,machinesets,machines,hullmarkmachines,hullmarkconfigs", "--namespace", namespace, "-o", "name")
		return left == "", strings.ReplaceAll(left, "\n", " "), err
	}); err != nil {
		return err
	}
	left, err := os.ReadDir(d.path("machines", namespace))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%s is not empty", d.path("machines", namespace))
	}
	if pids, err := d.machines(); err != nil || len(pids) > 0 {
		return errors.Join(err, fmt.Errorf("processes %d still run machines", pids))
	}
	secrets, err := d.ask(ctx, "get", "secrets", "--namespace", namespace, "-l", "cluster.x-k8s.io/cluster-name=prod", "-o", "name")
	if err == nil {
		fmt.Println("Secrets that a person made, and removes:", strings.ReplaceAll(secrets, "\n", " "))
	}
	return err
}

// webhookCertificate makes the certificate by which core serves webhooks. Nobody calls them here.
func (d *demo) webhookCertificate() (string, error) {
	dir := d.path("webhooks")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhooks"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	return dir, errors.Join(
		os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
	)
}
