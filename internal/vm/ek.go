package vm

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// The files of the state folder that say who the machine's TPM is.
const (
	EKPublicFile = "ek.pub" // the TPMT_PUBLIC of the EK, as TPM2_ReadPublic returns it
	EKIDFile     = "ek.id"  // the node id that follows from it, in hexadecimal, for `hullmark init --ekid`
	EKCertFile   = "ek.crt" // its certificate, PEM
	CAFile       = "ca.crt" // the certificate of the CA that signed it, PEM: the trust anchor for this machine alone
)

// ekHandle is the persistent handle of the RSA-2048 EK (TCG EK Credential Profile, template L-1).
const ekHandle = tpm2.TPMHandle(0x81010001)

// EK is a machine's endorsement key.
type EK struct {
	// Public is the TPMT_PUBLIC, marshalled as the TPM does.
	Public []byte
	// Certificate binds the key to CA, which is the machine's own: it proves nothing about any other machine.
	Certificate *x509.Certificate
	CA          *x509.Certificate
}

// ReadEK reads the EK of the machine whose state folder dir is. The folder gets it at the machine's first start.
func ReadEK(dir string) (EK, error) {
	public, err := os.ReadFile(filepath.Join(dir, EKPublicFile))
	if err != nil {
		return EK{}, fmt.Errorf("vm: endorsement key: %w", err)
	}
	cert, err := readCertificate(filepath.Join(dir, EKCertFile))
	if err != nil {
		return EK{}, err
	}
	ca, err := readCertificate(filepath.Join(dir, CAFile))
	return EK{Public: public, Certificate: cert, CA: ca}, err
}

func readCertificate(path string) (*x509.Certificate, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("vm: certificate: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("vm: certificate %s: no PEM certificate in it", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("vm: certificate %s: %w", path, err)
	}
	return cert, nil
}

func writePEM(path, kind string, der []byte) error {
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := atomicfile.Write(path, content, 0o600); err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	return nil
}

// caLifetime is longer than any machine's, so that an old state folder still boots.
const caLifetime = 30 * 365 * 24 * time.Hour

// makeCA makes the CA that will sign one EK: its key and certificate for swtpm_localca, which would otherwise make a chain of
// two with a tool of its own, and the certificate once more for whoever has to trust it.
func makeCA(ca, dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("vm: new tpm: CA: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "Hullmark CA of one virtual machine"},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(caLifetime),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("vm: new tpm: CA: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("vm: new tpm: CA: %w", err)
	}
	if err := writePEM(filepath.Join(ca, caKeyName), "PRIVATE KEY", keyDER); err != nil {
		return err
	}
	if err := writePEM(filepath.Join(ca, CAFile), "CERTIFICATE", der); err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, CAFile), "CERTIFICATE", der)
}

// recordEK writes the files that ReadEK reads, from a TPM that was just made.
func recordEK(ctx context.Context, t toolset, tpm, dir, runtime string) error {
	public, err := askEK(ctx, t, tpm, runtime)
	if err != nil {
		return err
	}
	id := []byte(hullmark.EKIDOf(public).String() + "\n")
	if err := atomicfile.Write(filepath.Join(dir, EKPublicFile), public, 0o600); err != nil {
		return fmt.Errorf("vm: endorsement key: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, EKIDFile), id, 0o600); err != nil {
		return fmt.Errorf("vm: endorsement key: %w", err)
	}
	der, err := os.ReadFile(filepath.Join(tpm, ekCertDER))
	if err != nil {
		return fmt.Errorf("vm: endorsement key: certificate: %w", err)
	}
	if err := writePEM(filepath.Join(dir, EKCertFile), "CERTIFICATE", der); err != nil {
		return err
	}
	ek, err := ReadEK(dir)
	if err != nil {
		return err
	}
	return ek.check()
}

// askEK starts a TPM without a machine and reads its EK.
func askEK(ctx context.Context, t toolset, tpm, runtime string) ([]byte, error) {
	socket := filepath.Join(runtime, "ask.sock")
	p, err := startSWTPM(ctx, t, tpm, runtime,
		"--server", "type=unixio,path="+t.inside(socket), "--flags", "not-need-init,startup-clear")
	if err != nil {
		return nil, err
	}
	defer p.kill()
	conn, err := dialUnix(ctx, socket, p.done)
	if err != nil {
		return nil, errors.Join(err, p.endedFailure())
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, fmt.Errorf("vm: endorsement key: %w", err)
	}
	return readEKPublic(transport.FromReadWriter(conn))
}

func readEKPublic(tpm transport.TPM) ([]byte, error) {
	reply, err := tpm2.ReadPublic{ObjectHandle: ekHandle}.Execute(tpm)
	if err != nil {
		return nil, fmt.Errorf("vm: endorsement key: read handle %#x: %w", uint32(ekHandle), err)
	}
	// An orderly end: without it the TPM counts an unexpected power loss.
	if _, err := (tpm2.Shutdown{ShutdownType: tpm2.TPMSUClear}).Execute(tpm); err != nil {
		return nil, fmt.Errorf("vm: endorsement key: shutdown: %w", err)
	}
	return reply.OutPublic.Bytes(), nil
}

// check holds the certificate against the key and the CA, so that a machine never starts with an identity that no verifier
// would accept.
func (e EK) check() error {
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](e.Public)
	if err != nil {
		return fmt.Errorf("vm: endorsement key: %w", err)
	}
	modulus, err := public.Unique.RSA()
	if err != nil {
		return fmt.Errorf("vm: endorsement key: %w", err)
	}
	certified, isRSA := e.Certificate.PublicKey.(*rsa.PublicKey)
	if !isRSA || certified.N.Cmp(new(big.Int).SetBytes(modulus.Buffer)) != 0 {
		return errors.New("vm: endorsement key: the certificate is for another key than the TPM's")
	}
	if err := e.Certificate.CheckSignatureFrom(e.CA); err != nil {
		return fmt.Errorf("vm: endorsement key: certificate: %w", err)
	}
	return nil
}
