// Package custody opens what was sealed to the manager: lent cluster files and enrollers' keys, which lie in Secrets of the management
// cluster. Its sealing key is an age identity that a keeper (docs/keepers.md) wrapped, so that Secrets, a copy of them, and the
// management cluster's etcd say nothing unless the keeper answers.
package custody

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update

const (
	// ClusterKey is the key of the Secret CLUSTER-lent that holds a lent cluster file.
	ClusterKey = "cluster"
	// EnrollerKey is the key of the Secret CLUSTER-enroller that holds an enroller's key.
	EnrollerKey = "enroller.key"

	// sealedKey and recipientKey are those of the sealing key's own Secret.
	sealedKey, recipientKey = "sealed", "recipient"
	// use is what the keeper wraps the sealing key for.
	use = "sealing-key"
)

// lentSuffix and enrollerSuffix end the names of a Cluster's Secrets.
const lentSuffix, enrollerSuffix = "-lent", "-enroller"

// LentName is the name of the Secret with a Cluster's lent cluster file.
func LentName(cluster string) string { return cluster + lentSuffix }

// EnrollerName is the name of the Secret with its enroller's key.
func EnrollerName(cluster string) string { return cluster + enrollerSuffix }

// Options say where the sealing key is.
type Options struct {
	// Secret is the Secret that holds it, wrapped. It is made if it is absent.
	Secret client.ObjectKey
	// Keeper is the URL of the keeper that wraps a new one (docs/keepers.md). One that is there has to be this keeper's; if it is empty,
	// the document names the keeper.
	Keeper string
	// Access reaches keepers.
	Access keys.Access
}

// Custody opens what was sealed to the manager. It is safe for concurrent use; a file that it opened is not.
type Custody struct {
	client   client.Client
	live     client.Reader
	identity *age.X25519Identity
	// secret is where the sealing key lies, and sealed is as what.
	secret client.ObjectKey
	sealed []byte
}

// Open has the keeper open the sealing key, or makes one. Nothing of it is written anywhere but wrapped. Secrets are read by live, past any
// cache. The error is a *hullmark.Condition if the keeper causes it.
func Open(ctx context.Context, c client.Client, live client.Reader, o Options) (*Custody, error) {
	opened, err := openKey(ctx, c, live, o)
	if err != nil {
		return nil, fmt.Errorf("sealing key: %w", err)
	}
	return opened, nil
}

func openKey(ctx context.Context, c client.Client, live client.Reader, o Options) (*Custody, error) {
	secret := &corev1.Secret{}
	err := live.Get(ctx, o.Secret, secret)
	if apierrors.IsNotFound(err) {
		if secret, err = makeSecret(ctx, o); err != nil {
			return nil, err
		}
		err = c.Create(ctx, secret)
		if apierrors.IsAlreadyExists(err) { // Another manager was first: its own counts.
			err = live.Get(ctx, o.Secret, secret)
		}
	}
	if err != nil {
		return nil, err
	}
	// Else whoever may write the Secret would choose which server is shown what the keeper wants to see, and whose key this is.
	if by, err := keys.KeeperURL(secret.Data[sealedKey]); err == nil && o.Keeper != "" && by != o.Keeper {
		return nil, fmt.Errorf("secret %s: keeper %s wrapped it, and --keeper names %s: name the one that wrapped it, if that is yours", o.Secret, by, o.Keeper)
	}
	identity, err := Unwrap(ctx, o.Access, secret.Data[sealedKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", o.Secret, err)
	}
	opened := &Custody{client: c, live: live, identity: identity, secret: o.Secret, sealed: secret.Data[sealedKey]}
	return opened, opened.putRight(ctx, secret)
}

// Unwrap has the keeper open a sealing key, for whoever may ask it.
func Unwrap(ctx context.Context, access keys.Access, wrapped []byte) (*age.X25519Identity, error) {
	text, err := access.Unwrap(ctx, use, wrapped)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	identity, err := age.ParseX25519Identity(string(text))
	if err != nil { // Its text may quote the key.
		return nil, errors.New("the keeper opened something that is no age identity")
	}
	return identity, nil
}

// makeSecret makes a sealing key, and has the keeper wrap it.
func makeSecret(ctx context.Context, o Options) (*corev1.Secret, error) {
	if o.Keeper == "" {
		return nil, fmt.Errorf("secret %s is not there, and no keeper is named that could wrap a new one (--keeper)", o.Secret)
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	text := []byte(identity.String())
	defer clear(text)
	wrapped, err := o.Access.Wrap(ctx, use, text, o.Keeper)
	if err != nil {
		return nil, err
	}
	return secretOf(o.Secret, wrapped, identity), nil
}

func secretOf(key client.ObjectKey, wrapped []byte, identity *age.X25519Identity) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Data:       map[string][]byte{sealedKey: wrapped, recipientKey: []byte(identity.Recipient().String())},
	}
}

// Recipient is the age recipient (age1…) that files are sealed to.
func (c *Custody) Recipient() string { return c.identity.Recipient().String() }

// watchEvery is how often Watch looks.
const watchEvery = time.Minute

// Watch looks at the sealing key's Secret as long as ctx lives, and puts its recipient right: whoever may write Secrets could name his own
// there, and people would seal to him. The error says that another key is there, which the next process has to open.
func (c *Custody) Watch(ctx context.Context) error {
	for {
		if err := c.look(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

func (c *Custody) look(ctx context.Context) error {
	secret := &corev1.Secret{}
	err := c.live.Get(ctx, c.secret, secret)
	if err == nil && !bytes.Equal(secret.Data[sealedKey], c.sealed) {
		// It may be of another management cluster, as a move wants it: nothing of it is written over.
		return fmt.Errorf("sealing key: secret %s: another key was put there; the manager ends, and has the keeper open that one when it begins again", c.secret)
	}
	switch {
	case err == nil:
		err = c.putRight(ctx, secret)
	case apierrors.IsNotFound(err):
		err = c.putBack(ctx)
	}
	if err != nil && ctx.Err() == nil {
		ctrl.Log.Error(err, "the sealing key's Secret cannot be looked at, or put right; it is tried again", "secret", c.secret)
	}
	return nil
}

// putBack makes the sealing key's Secret again, which somebody deleted: the next manager would make a new key, and open nothing of what was
// sealed to this one.
func (c *Custody) putBack(ctx context.Context) error {
	ctrl.Log.Error(nil, "somebody deleted the sealing key's Secret; it is made again", "secret", c.secret)
	return c.client.Create(ctx, secretOf(c.secret, c.sealed, c.identity))
}

// putRight has the sealing key's Secret name the key's own recipient.
func (c *Custody) putRight(ctx context.Context, secret *corev1.Secret) error {
	named := string(secret.Data[recipientKey])
	if named == c.Recipient() {
		return nil
	}
	ctrl.Log.Error(nil, "somebody changed the recipient in the sealing key's Secret; it is put right. "+
		"What was sealed to the other one is not this manager's: lend it anew, and exchange enrollers' keys",
		"secret", c.secret, "named", core.AtMost(named, 100), "recipient", c.Recipient())
	right := secret.DeepCopy()
	right.Data[recipientKey] = []byte(c.Recipient())
	if err := c.client.Update(ctx, right); err != nil {
		return fmt.Errorf("secret %s: it names the recipient %.100q, and its key's is %s: put that right: %w", c.secret, named, c.Recipient(), err)
	}
	return nil
}

// OpenCluster opens the lent cluster file of a Secret. What Update changes in it is in the Secret before it counts, unless somebody else
// has changed the Secret since. The error is the API's if the Secret is not there, and cluster.ErrSealed for a file of somebody else's.
func (c *Custody) OpenCluster(ctx context.Context, key client.ObjectKey) (*cluster.File, error) {
	secret, sealed, err := c.read(ctx, key, ClusterKey)
	if err != nil {
		return nil, err
	}
	file, err := cluster.OpenSealed(sealed, c.identity, &store{ctx, c.client, secret})
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	if err := checkPurpose(key, lentSuffix, file.Cluster.Lease.For); err != nil {
		return nil, err
	}
	return file, nil
}

// checkPurpose refuses what is sealed for another Cluster than the one whose Secret it is in: whoever has a copy of it, and may make a
// Cluster of his own, would have this manager use it for him.
func checkPurpose(key client.ObjectKey, suffix, purpose string) error {
	if want := key.Namespace + "/" + strings.TrimSuffix(key.Name, suffix); purpose != want {
		return fmt.Errorf("secret %s: it is sealed for Cluster %q, and has to be sealed for %s (--for)", key, purpose, want)
	}
	return nil
}

// OpenEnroller opens the enroller's key of a Secret.
func (c *Custody) OpenEnroller(ctx context.Context, key client.ObjectKey) (ed25519.PrivateKey, error) {
	_, sealed, err := c.read(ctx, key, EnrollerKey)
	if err != nil {
		return nil, err
	}
	opened, purpose, err := operate.OpenEnrollerKey(sealed, c.identity)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", key, err)
	}
	if err := checkPurpose(key, enrollerSuffix, purpose); err != nil {
		clear(opened)
		return nil, err
	}
	return opened, nil
}

// read returns a Secret, and what is in it under a key.
func (c *Custody) read(ctx context.Context, key client.ObjectKey, name string) (*corev1.Secret, []byte, error) {
	secret := &corev1.Secret{}
	if err := c.live.Get(ctx, key, secret); err != nil {
		return nil, nil, err
	}
	sealed, ok := secret.Data[name]
	if !ok {
		return nil, nil, fmt.Errorf("secret %s has no key %s", key, name)
	}
	return secret, sealed, nil
}

// store is a Secret as the place of a lent cluster file.
type store struct {
	// ctx is that of whoever opened the file: Update has none.
	ctx    context.Context
	client client.Client
	// secret is as it was read or written last.
	secret *corev1.Secret
}

// Replace implements cluster.Store, by the Secret's resource version.
func (s *store) Replace(encrypted []byte) error {
	next := s.secret.DeepCopy()
	next.Data[ClusterKey] = encrypted
	if err := s.client.Update(s.ctx, next); err != nil {
		if apierrors.IsConflict(err) {
			err = errors.Join(err, errors.New("somebody changed it meanwhile; it is read again"))
		}
		return fmt.Errorf("secret %s: %w", client.ObjectKeyFromObject(s.secret), err)
	}
	s.secret = next
	return nil
}
