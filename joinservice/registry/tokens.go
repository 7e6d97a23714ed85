package registry

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

const (
	// tokenLife is how long a token may be used; it is revoked before if its machine is Ready.
	tokenLife = 15 * time.Minute
	// tokenType is the type of a token's Secret, tokenPrefix what its name begins with.
	tokenType   = corev1.SecretType("bootstrap.kubernetes.io/token")
	tokenPrefix = "bootstrap-token-"
	// tokenGroup is one that a token's bearer is in; Manifest gives it its permissions.
	tokenGroup = "system:bootstrappers:kubeadm:default-node-token"
	// machineGroup begins the other one, and the machine that the token was made for ends it: so the API server itself writes into
	// each certificate request whose token it came with.
	machineGroup = "system:bootstrappers:hullmark:"
)

// Lengths of a token's two halves, in characters (Kubernetes' bootstrap token format).
const tokenIDLength, tokenSecretLength = 6, 16

var tokenID = regexp.MustCompile(`^[a-z0-9]{6}$`)

// Issue makes a token for one machine alone; see joinservice.Tokens. It may be
// used for 15 minutes and for nothing but authentication.
func (r *Tokens) Issue(ctx context.Context, m joinservice.Machine, note func(id string) error) (token hullmark.Secret, err error) {
	// Of 36^6 identifiers one that is in use already is met rarely, and three times never.
	for range 3 {
		token := letters(tokenIDLength + 1 + tokenSecretLength)
		token[tokenIDLength] = '.'
		id := string(token[:tokenIDLength])
		if err = note(id); err == nil {
			err = r.createToken(ctx, m.EKID, tokenSecret(m.EKID, id, token[tokenIDLength+1:]))
		}
		if err == nil {
			return hullmark.NewSecret(token), nil
		}
		clear(token)
		if !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return hullmark.Secret{}, err
}

// letters returns n characters of a–z and 0–9, each equally likely.
func letters(n int) []byte {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	// Bytes from whole on would make the alphabet's first letters likelier.
	const whole = 256 - 256%len(alphabet)
	out := make([]byte, 0, n)
	var b [1]byte
	for len(out) < n {
		_, _ = rand.Read(b[:]) // never fails
		if int(b[0]) < whole {
			out = append(out, alphabet[int(b[0])%len(alphabet)])
		}
	}
	return out
}

// tokenSecret is the object that makes a token.
func tokenSecret(node hullmark.EKID, id string, secret []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: tokenPrefix + id, Namespace: tokenNamespace,
			Labels: map[string]string{managedLabel: managedBy},
		},
		Type: tokenType,
		Data: map[string][]byte{
			"token-id": []byte(id), "token-secret": secret,
			"expiration":                     []byte(time.Now().Add(tokenLife).UTC().Format(time.RFC3339)),
			"usage-bootstrap-authentication": []byte("true"),
			"auth-extra-groups":              []byte(tokenGroup + "," + machineGroup + node.String()),
		},
	}
}

func (r *Tokens) createToken(ctx context.Context, node hullmark.EKID, object *corev1.Secret) error {
	_, err := call(ctx, r.connection, "make the bootstrap token of machine "+node.String(), func(ctx context.Context) (struct{}, error) {
		answer, err := r.secrets.create(ctx, object)
		if answer != nil {
			clear(answer.Data["token-secret"])
		}
		return struct{}{}, err
	})
	return err
}

// Revoke ends a token; one that is gone already is no error.
func (r *Tokens) Revoke(ctx context.Context, id string) error {
	if !tokenID.MatchString(id) {
		return fmt.Errorf("revoke a bootstrap token: %q is no token's public half", id)
	}
	return r.remove(ctx, "revoke the bootstrap token "+id, r.secrets.delete, tokenPrefix+id)
}
