package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	"sync"
	"time"

	"github.com/hullmark/hullmark/attest/channel"
)

// ErrRootElsewhere says that the root has to sign something, that its key is not in the file, and that nobody said who signs with it.
var ErrRootElsewhere = errors.New("the root has to sign this, and its key is not in the cluster file; next: name the command that signs with it (--root-signer)")

// RemoteRoot is a root whose key is not in the cluster file: it is in a token, in a key service, in shares, on another machine.
type RemoteRoot struct {
	// Public is the key's public half, which has to be ECDSA P-256.
	Public crypto.PublicKey
	// Sign has the key sign a message: ECDSA with SHA-256 over it, in ASN.1 DER, or as r and s of 32 bytes each. Whatever it returns is
	// held to Public before it is used. It is called once for each message, and not by several goroutines at a time.
	Sign func(message []byte) ([]byte, error)
}

// SignBy says who signs with a root's key that is elsewhere, as RemoteRoot has it. The file does not keep it.
func (c *Cluster) SignBy(sign func(message []byte) ([]byte, error)) error {
	if c.remote == nil {
		return errors.New("nobody else signs for this cluster file: it has the root's key, or was lent without it")
	}
	c.remote.mutex.Lock()
	defer c.remote.mutex.Unlock()
	c.remote.sign = sign
	return nil
}

// RootElsewhere reports whether the root's key is elsewhere, and not in the file. Of a file that was lent that is not said.
func (c *Cluster) RootElsewhere() bool { return c.remote != nil }

// takeRoot takes a root whose key is elsewhere, which signs its own certificate and that of an online CA.
func (c *Cluster) takeRoot(root RemoteRoot) (err error) {
	c.Root.Key = nil
	if c.remote, err = newRemoteKey(root.Public); err != nil {
		return err
	}
	c.remote.sign = root.Sign
	return c.certifyRoot()
}

// GiveUpRootKey takes the root's key out of the file: it is elsewhere from then on, wherever the caller has put it. Of a file that was
// lent the error is ErrLent.
func (c *Cluster) GiveUpRootKey() error {
	switch {
	case c.Lease != nil:
		return ErrLent
	case c.Root.Key == nil:
		return errors.New("the root's key is not in this cluster file; next: exchange the root for one that is (hullmark cluster rotate root)")
	}
	remote, err := newRemoteKey(c.Root.Key.Public())
	if err != nil {
		return err
	}
	c.Root.Key, c.remote = nil, remote
	return nil
}

// rootKey is what signs as the root. If nothing does, the error is ErrLent of a file that was lent, and else ErrNotGranted.
func (c *Cluster) rootKey() (crypto.Signer, error) {
	switch {
	case c.remote != nil:
		return c.remote, nil
	case c.Root.Key != nil:
		return c.Root.Key, nil
	case c.Lease != nil:
		return nil, ErrLent
	}
	return nil, ErrNotGranted
}

// newOperator returns a client certificate for a scope.
func (c *Cluster) newOperator(scope channel.Scope) (tls.Certificate, error) {
	if c.remote != nil {
		return c.remote.operator(c.Root.Certificate, scope)
	}
	root, err := c.rootKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	return channel.NewOperator(c.Root.Certificate, root, scope)
}

// remoteKey is a root's key that is elsewhere. The copies of a Cluster share it.
type remoteKey struct {
	public *ecdsa.PublicKey

	// mutex guards what follows, so that one signature is asked for at a time.
	mutex sync.Mutex
	// sign is RemoteRoot.Sign; nil if nobody was named yet.
	sign func(message []byte) ([]byte, error)
	// answers are the signatures that were made, by their messages' digests: a policy is signed to see that it can be kept, and then
	// kept, and whoever has the key is asked once.
	answers map[[sha256.Size]byte][]byte

	// leaves guards operators.
	leaves sync.Mutex
	// operators are the operator's certificates that were made. They are in memory alone, and gone with the process.
	operators map[channel.Scope]tls.Certificate
}

func newRemoteKey(public crypto.PublicKey) (*remoteKey, error) {
	key, ok := public.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the root's key has to be one of ECDSA P-256 (prime256v1), and this is another kind")
	}
	return &remoteKey{public: key, answers: map[[sha256.Size]byte][]byte{}, operators: map[channel.Scope]tls.Certificate{}}, nil
}

// Public implements crypto.Signer.
func (k *remoteKey) Public() crypto.PublicKey { return k.public }

// Sign always fails: whoever has the key is shown what it signs, and not a digest of it.
func (k *remoteKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("a root's key that is elsewhere signs messages, not digests")
}

// SignMessage implements crypto.MessageSigner.
func (k *remoteKey) SignMessage(_ io.Reader, message []byte, o crypto.SignerOpts) ([]byte, error) {
	if o.HashFunc() != crypto.SHA256 {
		return nil, fmt.Errorf("the root signs with SHA-256, and not with %v", o.HashFunc())
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	digest := sha256.Sum256(message)
	if signature, ok := k.answers[digest]; ok {
		return signature, nil
	}
	if k.sign == nil {
		return nil, ErrRootElsewhere
	}
	answer, err := k.sign(message)
	if err != nil {
		return nil, fmt.Errorf("the root's signature: %w", err)
	}
	signature, err := k.check(digest, answer)
	if err != nil {
		return nil, fmt.Errorf("the root's signature: %w", err)
	}
	k.answers[digest] = signature
	return signature, nil
}

// coordinate is the length of r and of s in a signature that is not in ASN.1, in bytes.
const coordinate = 32

// check holds an answer to the message's digest, and returns it in ASN.1 DER, as policies and certificates have it.
func (k *remoteKey) check(digest [sha256.Size]byte, answer []byte) ([]byte, error) {
	if ecdsa.VerifyASN1(k.public, digest[:], answer) {
		return answer, nil
	}
	if len(answer) == 2*coordinate {
		pair := struct{ R, S *big.Int }{new(big.Int).SetBytes(answer[:coordinate]), new(big.Int).SetBytes(answer[coordinate:])}
		if signature, err := asn1.Marshal(pair); err == nil && ecdsa.VerifyASN1(k.public, digest[:], signature) {
			return signature, nil
		}
	}
	return nil, fmt.Errorf("the answer of %d bytes is not the root key's over what was asked; want ECDSA with SHA-256, in ASN.1 DER or as r and s of %d bytes each, and not encoded further; nothing was signed", len(answer), coordinate)
}

// operator returns the operator's certificate for a scope, which is made once, and anew before its dates are over.
func (k *remoteKey) operator(root *x509.Certificate, scope channel.Scope) (tls.Certificate, error) {
	k.leaves.Lock()
	defer k.leaves.Unlock()
	if made, ok := k.operators[scope]; ok && time.Until(made.Leaf.NotAfter) > time.Hour {
		return made, nil
	}
	made, err := channel.NewOperator(root, k, scope)
	if err != nil {
		return tls.Certificate{}, err
	}
	k.operators[scope] = made
	return made, nil
}
