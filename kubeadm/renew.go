package kubeadm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/pemcert"
)

// RenewFile holds, on the state disk, the documents of a renewal from before the first old file is removed until the last new
// one is there: what is in the old ones cannot be found again after that. It holds no secret.
const RenewFile = "/etc/kubernetes/renew.yaml"

// renewBefore is how long before its end a certificate is made anew, and so how long a control plane may go without a boot:
// kubeadm's are good for a year (cmd/kubeadm/app/constants, CertificateValidityPeriod).
const renewBefore = 240 * 24 * time.Hour

// EndsSoon is how long before its end a control plane's certificate is worth a warning: no control plane that boots as often as
// it should has such a one.
const EndsSoon = 120 * 24 * time.Hour

const (
	kubernetesDir     = "/etc/kubernetes/"
	apiServerManifest = kubernetesDir + "manifests/kube-apiserver.yaml"
	adminConf         = kubernetesDir + "admin.conf"
)

// renewed are the certificates of a control plane that kubeadm makes, below pkiDir and without ending.
var renewed = []string{
	"apiserver", "apiserver-kubelet-client", "apiserver-etcd-client", "front-proxy-client", "etcd/server", "etcd/peer", "etcd/healthcheck-client",
}

// signerOf returns the file of the authority that signs one of the renewed certificates.
func signerOf(base string) string {
	switch {
	case strings.HasPrefix(base, "etcd/") || base == "apiserver-etcd-client":
		return hullmark.EtcdCACertificate
	case base == "front-proxy-client":
		return hullmark.FrontProxyCACertificate
	}
	return hullmark.KubernetesCACertificate
}

// Renewals returns the files that a renewal makes anew, so that they have to be removed before.
func Renewals() []string {
	files := []string{adminConf, kubernetesDir + "controller-manager.conf", kubernetesDir + "scheduler.conf"}
	for _, base := range renewed {
		files = append(files, path.Join(pkiDir, base+".crt"), path.Join(pkiDir, base+".key"))
	}
	return files
}

// Renewal says what a control plane's certificates and kubeconfigs have to be like.
type Renewal struct {
	// NodeName is the node's name.
	NodeName string
	// Endpoint is the control plane's HOST:PORT.
	Endpoint string
	// Names are further names and addresses of the API server.
	Names []string
	// Now is the time at which a certificate's remaining life is judged.
	Now time.Time
	// Read returns the content of a file by the path that programs see.
	Read func(path string) ([]byte, error)
}

var versionLine = regexp.MustCompile(`(?m)^kubernetesVersion: .*$`)

// Interrupted returns the documents of a renewal that did not end, for the release of this image, or none. The files that it
// made anew may be gone or torn.
func (r Renewal) Interrupted() ([]byte, error) {
	documents, err := r.Read(RenewFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("renew certificates: %w", err)
	}
	return versionLine.ReplaceAll(documents, []byte("kubernetesVersion: "+Version)), nil
}

// Plan returns the documents with which kubeadm makes the node's certificates and kubeconfigs anew, and why that is due: a
// certificate ends soon, or is of an authority that was exchanged, or the API server's lacks a name, or admin.conf leads elsewhere. It
// returns none if all is well. Names that the old certificates are for, the new ones are for, too.
func (r Renewal) Plan() (documents []byte, why string, err error) {
	if documents, why, err = r.plan(); err != nil {
		return nil, "", fmt.Errorf("renew certificates: %w", err)
	}
	return documents, why, nil
}

func (r Renewal) plan() (documents []byte, why string, err error) {
	certificates := map[string]*x509.Certificate{}
	for _, base := range renewed {
		if certificates[base], err = r.certificate(base); err != nil {
			return nil, "", err
		}
		signed, err := r.signed(base, certificates[base])
		if err != nil {
			return nil, "", err
		}
		switch end := certificates[base].NotAfter; {
		case why != "":
		case !signed:
			why = ofAnother(base)
		case end.Sub(r.Now) < renewBefore:
			why = fmt.Sprintf("%s.crt ends on %s", base, end.UTC().Format(time.DateOnly))
		}
	}
	if why == "" && r.KubeletEnded() {
		why = "the kubelet's certificate has ended"
	}
	if why == "" {
		if why, err = r.unserved(certificates["apiserver"]); err != nil || why == "" {
			return nil, "", err
		}
	}
	documents, err = r.documents(certificates)
	return documents, why, err
}

// KubeletEnded reports that the kubelet's client certificate has ended, or is about to, or cannot be read, or is of an authority that is
// trusted no more, so that KubeletIdentity has to be made anew, too. One that kubeadm has just made is in kubelet.conf alone, and the
// kubelet exchanges it when it starts.
func (r Renewal) KubeletEnded() bool {
	text, err := r.Read(ClientCertificate)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	ends, torn := pemcert.End(text)
	return err != nil || torn != nil || ends.Sub(r.Now) < kubeletMargin || r.distrusted(text)
}

// distrusted reports that the first certificate of a text, which holds a key, too, is of none of the cluster's authorities. Where these
// cannot be read it is not.
func (r Renewal) distrusted(text []byte) bool {
	bundle, err := r.Read(hullmark.KubernetesCACertificate)
	if err != nil {
		return false
	}
	trusted, err := pemcert.Split(bundle)
	if err != nil {
		return false
	}
	certificate, err := pemcert.First(text)
	return err != nil || !slices.ContainsFunc(trusted, func(der []byte) bool {
		authority, err := x509.ParseCertificate(der)
		return err == nil && certificate.CheckSignatureFrom(authority) == nil
	})
}

// kubeletMargin is how much longer a kubelet's certificate has to last for a control plane to start with it.
const kubeletMargin = 10 * time.Minute

// Superseded reports that a certificate is of another authority than the one that signs by now: it was exchanged. What cannot be read
// is not.
func (r Renewal) Superseded() bool {
	return slices.ContainsFunc(renewed, func(base string) bool {
		signed, err := r.current(base)
		return err == nil && !signed
	})
}

// Current returns nil if all of the renewed certificates are of the authorities that sign by now, and else why that is not so, or not
// known. It needs Read alone.
func (r Renewal) Current() error {
	for _, base := range renewed {
		signed, err := r.current(base)
		if err != nil {
			return err
		}
		if !signed {
			return errors.New(ofAnother(base))
		}
	}
	return nil
}

// ofAnother says of one of the renewed certificates that it is of another authority.
func ofAnother(base string) string { return base + ".crt is not of the authority that signs by now" }

// current is signed of the certificate that is there.
func (r Renewal) current(base string) (bool, error) {
	certificate, err := r.certificate(base)
	if err != nil {
		return false, err
	}
	return r.signed(base, certificate)
}

// signed reports whether one of the renewed certificates is of the authority that signs by now: of its file the first certificate,
// which is the one that kubeadm takes (cmd/kubeadm/app/util/pkiutil, TryLoadCertFromDisk).
func (r Renewal) signed(base string, certificate *x509.Certificate) (bool, error) {
	authority, err := r.read(signerOf(base))
	return err == nil && certificate.CheckSignatureFrom(authority) == nil, err
}

// certificate reads one of the renewed certificates.
func (r Renewal) certificate(base string) (*x509.Certificate, error) {
	return r.read(path.Join(pkiDir, base+".crt"))
}

// read reads the first certificate of a file.
func (r Renewal) read(name string) (*x509.Certificate, error) {
	text, err := r.Read(name)
	if err != nil {
		return nil, err
	}
	short := strings.TrimPrefix(name, pkiDir+"/")
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM", short)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", short, err)
	}
	return certificate, nil
}

// unserved says what of the endpoint the node does not serve, or does not use itself, yet.
func (r Renewal) unserved(apiServer *x509.Certificate) (string, error) {
	host, err := r.host()
	if err != nil {
		return "", err
	}
	has := namesOf(apiServer)
	for _, name := range append([]string{host}, r.Names...) {
		if !slices.Contains(has, name) {
			return "apiserver.crt is not for " + name, nil
		}
	}
	admin, err := r.Read(adminConf)
	if err != nil {
		return "", err
	}
	server, err := serverOf(admin)
	if err != nil {
		return "", fmt.Errorf("admin.conf: %w", err)
	}
	if server != "https://"+r.Endpoint {
		return "admin.conf names " + server, nil
	}
	return "", nil
}

// host is the endpoint's, as certificates spell it.
func (r Renewal) host() (string, error) {
	host, _, err := net.SplitHostPort(r.Endpoint)
	if err != nil {
		return "", fmt.Errorf("endpoint: %w", err)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String(), nil
	}
	return strings.ToLower(host), nil
}

// Serves reports whether the API server's certificate is for the endpoint.
func (r Renewal) Serves() (bool, error) {
	certificate, err := r.certificate("apiserver")
	if err != nil {
		return false, err
	}
	host, err := r.host()
	return slices.Contains(namesOf(certificate), host), err
}

// namesOf returns the names and addresses that a certificate is for.
func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			names = append(names, a.Unmap().String())
		}
	}
	return names
}

// documents are those of an init of this very node, as far as certificates and kubeconfigs depend on them. What they say is in the node's
// own files: the flags of its API server, and the old certificates.
func (r Renewal) documents(old map[string]*x509.Certificate) ([]byte, error) {
	flags, err := r.apiServerFlags()
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(flags["secure-port"], 10, 16)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver's --secure-port: %w", err)
	}
	algorithm, err := algorithmOf(old["apiserver"])
	if err != nil {
		return nil, err
	}
	host, err := r.host()
	if err != nil {
		return nil, err
	}
	names := append(namesOf(old["apiserver"]), host)
	names = append(names, r.Names...)
	slices.Sort(names)
	return stream(
		initConfiguration{
			meta:             meta{APIVersion: kubeadmAPI, Kind: "InitConfiguration"},
			NodeRegistration: registrationOf(r.NodeName, ""),
			LocalAPIEndpoint: endpoint{AdvertiseAddress: flags["advertise-address"], BindPort: int(port)},
			Patches:          directory{Directory: PatchesDir},
		},
		clusterConfiguration{
			meta:                 meta{APIVersion: kubeadmAPI, Kind: "ClusterConfiguration"},
			KubernetesVersion:    Version,
			ImageRepository:      Repository,
			ControlPlaneEndpoint: r.Endpoint,
			EncryptionAlgorithm:  algorithm,
			Networking: networking{
				ServiceSubnet: flags["service-cluster-ip-range"],
				DNSDomain:     domainOf(old["apiserver"]),
			},
			APIServer: apiServer{CertSANs: slices.Compact(names)},
			Etcd: &etcd{Local: localEtcd{
				DataDir: EtcdData, ServerCertSANs: namesOf(old["etcd/server"]), PeerCertSANs: namesOf(old["etcd/peer"]),
			}},
		})
}

// domainOf returns the cluster's domain, which kubeadm makes the end of one of the API server's names; without that name it is
// kubeadm's default.
func domainOf(apiServer *x509.Certificate) string {
	for _, name := range apiServer.DNSNames {
		if domain, ok := strings.CutPrefix(name, "kubernetes.default.svc."); ok {
			return domain
		}
	}
	return "cluster.local"
}

// IsOwn reports whether a kubeconfig leads to the node's own API server, at the address that it advertises.
func (r Renewal) IsOwn(kubeconfig []byte) (bool, error) {
	server, err := serverOf(kubeconfig)
	if err != nil {
		return false, fmt.Errorf("kubeconfig: %w", err)
	}
	flags, err := r.apiServerFlags()
	if err != nil {
		return false, err
	}
	return server == "https://"+net.JoinHostPort(flags["advertise-address"], flags["secure-port"]), nil
}

// apiServerFlags reads the flags of the node's API server, those that are needed here at least.
func (r Renewal) apiServerFlags() (map[string]string, error) {
	text, err := r.Read(apiServerManifest)
	if err != nil {
		return nil, err
	}
	pod, err := readPod(text)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver.yaml: %w", err)
	}
	for _, name := range []string{"advertise-address", "secure-port", "service-cluster-ip-range"} {
		if pod.flags[name] == "" {
			return nil, fmt.Errorf("kube-apiserver.yaml: the API server has no --%s", name)
		}
	}
	return pod.flags, nil
}

// algorithmOf returns kubeadm's name for the kind of a certificate's key.
func algorithmOf(c *x509.Certificate) (string, error) {
	switch key := c.PublicKey.(type) {
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return "ECDSA-P256", nil
		case elliptic.P384():
			return "ECDSA-P384", nil
		}
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA-%d", key.N.BitLen()), nil
	}
	return "", fmt.Errorf("apiserver.crt: a key that kubeadm does not make: %T", c.PublicKey)
}
