package operate

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"filippo.io/age"
	"github.com/youmark/pkcs8"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// rounds are as many of PBKDF2 as OWASP's password storage cheat sheet wants.
const rounds = 600_000

// NewEnrollerKey makes an enroller's key: the private half in PEM (PKCS #8, encrypted under the passphrase), and the public one, which
// a group of the policy names.
func NewEnrollerKey(passphrase hullmark.Secret) (private, public []byte, err error) {
	return newEnrollerKey(func(secret ed25519.PrivateKey) ([]byte, error) {
		encrypted, err := pkcs8.MarshalPrivateKey(secret, passphrase.Expose(), &pkcs8.Opts{
			Cipher: pkcs8.AES256CBC, KDFOpts: pkcs8.PBKDF2Opts{SaltSize: 16, IterationCount: rounds, HMACHash: crypto.SHA256},
		})
		return pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: encrypted}), err
	})
}

// maxFor bounds the name of what an enroller's key is for: a namespace and a name of Kubernetes.
const maxFor = 63 + 1 + 253

// NewSealedEnrollerKey is NewEnrollerKey for a program that has an age identity: the private half is sealed to its recipient, with the
// Cluster, NAMESPACE/NAME, that the program may use it for.
func NewSealedEnrollerKey(recipient *age.X25519Recipient, purpose string) (private, public []byte, err error) {
	return newEnrollerKey(func(secret ed25519.PrivateKey) ([]byte, error) {
		var sealed bytes.Buffer
		w, err := age.Encrypt(&sealed, recipient)
		if err != nil {
			return nil, err
		}
		plain := slices.Concat(secret.Seed(), []byte(purpose))
		defer clear(plain)
		if _, err := w.Write(plain); err != nil {
			return nil, err
		}
		err = w.Close()
		return sealed.Bytes(), err
	})
}

// OpenEnrollerKey opens the private half that NewSealedEnrollerKey made, and returns what it is for.
func OpenEnrollerKey(sealed []byte, identity age.Identity) (key ed25519.PrivateKey, purpose string, err error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), identity)
	if err != nil {
		return nil, "", fmt.Errorf("enroller's key: %w", err)
	}
	opened, err := io.ReadAll(io.LimitReader(r, ed25519.SeedSize+maxFor+1))
	if err != nil {
		return nil, "", fmt.Errorf("enroller's key: %w", err)
	}
	defer clear(opened)
	if len(opened) < ed25519.SeedSize || len(opened) > ed25519.SeedSize+maxFor {
		return nil, "", errors.New("enroller's key: what was sealed is no Ed25519 key")
	}
	return ed25519.NewKeyFromSeed(opened[:ed25519.SeedSize]), string(opened[ed25519.SeedSize:]), nil
}

func newEnrollerKey(encrypt func(ed25519.PrivateKey) ([]byte, error)) (private, public []byte, err error) {
	key, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	defer clear(secret)
	if private, err = encrypt(secret); err != nil {
		return nil, nil, fmt.Errorf("encrypt the enroller's key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// Voucher is one that the cluster has, and whose it is.
type Voucher struct {
	measurements.Voucher
	// Enroller is the public key that it names. Whether the signature is good, and any group trusts it, join services say.
	Enroller string `json:"enroller"`
	// Expired says that no machine can come by it for the first time any more.
	Expired bool `json:"expired"`
}

// ReadVoucher reads a signed voucher, for people; now is what it may have expired by.
func ReadVoucher(signed []byte, now time.Time) (Voucher, error) {
	v, enroller, err := measurements.ReadVoucher(signed)
	return Voucher{Voucher: v, Enroller: fmt.Sprintf("%x", enroller), Expired: now.After(v.NotAfter)}, err
}

// Vouchers are those of a cluster's API, as the account of a kubeconfig reaches it: the enroller's is enough, and no cluster file is
// needed. Errors that the server causes carry a hullmark.Condition.
type Vouchers struct{ client *registry.Registry }

// ConnectVouchers reads a kubeconfig; it asks nothing yet. The error is ErrUsage if the file is none.
func ConnectVouchers(kubeconfig string) (*Vouchers, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, as(ErrUsage, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err))
	}
	client, err := registry.New(config)
	return &Vouchers{client}, err
}

// Put gives the cluster a signed voucher, in the place of one that the machine has. A machine that has joined keeps what it joined with.
func (v *Vouchers) Put(ctx context.Context, signed []byte) error {
	return v.client.PutVoucher(ctx, signed)
}

// List returns the cluster's vouchers that can be read; the others are named by the error, which comes beside them.
func (v *Vouchers) List(ctx context.Context) ([]Voucher, error) {
	all, err := v.client.ListVouchers(ctx)
	listed := make([]Voucher, 0, len(all))
	for _, signed := range all {
		if one, wrong := ReadVoucher(signed, time.Now()); wrong == nil { // They were read before.
			listed = append(listed, one)
		}
	}
	return listed, err
}

// Delete takes a machine's voucher back. A machine that has joined by it stays: hullmark policy remove member bars it.
func (v *Vouchers) Delete(ctx context.Context, node hullmark.EKID) error {
	return v.client.DeleteVoucher(ctx, node)
}
