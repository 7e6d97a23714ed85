package joinservice

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/measurements"
)

// Machine is what a cluster keeps of one machine: who it is, how recent its
// disk must be, and how far it has come. It holds no secret.
type Machine struct {
	// EKID is the machine's identity, and the record's key.
	EKID hullmark.EKID `json:"ekid"`
	// Name is its name in Kubernetes, from the membership rule that admitted it last.
	Name string `json:"name"`
	// Role is the role that the rule gave.
	Role hullmark.Role `json:"role"`
	// Platform is what its evidence says that it runs on, and Document the one that its registers matched.
	Platform hullmark.PlatformClaims `json:"platform"`
	Document measurements.DocumentID `json:"document"`
	// Kubernetes is the version that the document says; unknown if it says none.
	Kubernetes hullmark.Version `json:"kubernetes,omitzero"`
	// Root is the one that its configuration named at its last ticket; zero is the cluster's first.
	Root hullmark.ClusterRoot `json:"clusterRoot,omitzero"`
	// Rotation is that of the keys by which a control plane runs in this boot, as its own join service said: an earlier one than it holds
	// while its programs have certificates of an authority that was exchanged.
	Rotation uint64 `json:"rotation,omitempty"`
	// KubernetesCA is what a worker trusts of the Kubernetes CA since it was Ready last, once policies commit to that
	// (measurements.Policy): what it was brought while all control planes held it. Zero is what it has trusted before.
	KubernetesCA hullmark.CADigest `json:"kubernetesCA,omitzero"`
	// Record is that of its state disk.
	Record Record `json:"disk"`
	// Advanced is when it was last issued a number while it was Ready, by the service's clock.
	Advanced time.Time `json:"advanced,omitzero"`
	// Etcd is what its member of etcd had stored when it was heard of last.
	Etcd EtcdNote `json:"etcd,omitzero"`
	// Addresses are the ones that it may have claimed: those that Opened or a request of its kubelet named, and that it was not
	// refused. Nothing is approved by them, but by the claims.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Refused are the others that it named last.
	Refused []Refusal `json:"refused,omitempty"`
	// Token is the public half of the bootstrap token that its last ticket
	// brought, as long as the token may be used; no secret.
	Token string `json:"token,omitempty"`
	// FirstKey is the SHA-256, in hexadecimal, of the public key (SubjectPublicKeyInfo, in DER) that the bearer of its last
	// token may have a certificate for: a token is good for one key. It is empty as long as nobody asked.
	FirstKey string `json:"firstKey,omitempty"`
	// Credentials are the client certificates that its kubelet was seen to get since its last token, MaxCredentials at most:
	// only who shows one of these renews it.
	Credentials []Credential `json:"credentials,omitempty"`
	// EKCertificate is that of its endorsement key, with its chain (ekcert.Parse), where a group admitted it by that: it is judged
	// again whenever its kubelet asks for a certificate.
	EKCertificate []byte `json:"ekCertificate,omitempty"`
	// Voucher is the signed one by which a group admitted it: it comes back by that although it has expired, or was deleted, as
	// long as the policy takes it.
	Voucher []byte `json:"voucher,omitempty"`
	// ProviderID is the one that it joined with last, which its kubelet registered its node with; empty means none.
	ProviderID string `json:"providerID,omitempty"`
	// CertificateEnds is when the last client certificate that its kubelet may have got ends, before its last token, too; zero
	// if it never asked for one. It is what the certificates say that were seen issued, and else the latest by the clock of who
	// approved them.
	CertificateEnds time.Time `json:"certificateEnds,omitzero"`
	// Update is what it said last of its slots; nil if it never did.
	Update *hullmark.UpdateStatus `json:"update,omitempty"`
	// State is how far it has come, Seen when it said so by the service's clock.
	State MachineState `json:"state"`
	Seen  time.Time    `json:"seen"`
	// Phase is what it said that it does, Condition why it stopped or waits.
	Phase     string              `json:"phase,omitempty"`
	Condition *hullmark.Condition `json:"condition,omitempty"`
}

// NamedRoot is what a machine's record says of the root in its configuration: nothing as long as the cluster has its first one.
func NamedRoot(policy measurements.Policy, claims attest.Claims) hullmark.ClusterRoot {
	if claims.Config.ClusterRoot == policy.First(claims.Config.ClusterRoot) {
		return hullmark.ClusterRoot{}
	}
	return claims.Config.ClusterRoot
}

// MachineState is how far a machine has come in its last exchange.
type MachineState string

// The states of a machine; the first three in their order.
const (
	// MachineAdmitted has a ticket, and nothing of its disk was heard yet.
	MachineAdmitted MachineState = "admitted"
	// MachineJoining has confirmed its epoch and was told to go on.
	MachineJoining MachineState = "joining"
	// MachineReady said that its node is Ready.
	MachineReady MachineState = "ready"
	// MachineFailed said why it stopped, or fell silent: Condition tells.
	MachineFailed MachineState = "failed"
	// MachineWaiting was denied a ticket, or Proceed, for a reason that passes, and asks again: Condition tells.
	MachineWaiting MachineState = "waiting"
)

// Version is what a keeper of records compares before it replaces one. The zero value means that there is none yet.
type Version string

// ErrConflict says that a record was changed by somebody else since it was read.
var ErrConflict = errors.New("the record was changed by somebody else")

// Records keeps machines' records, for all replicas of the service together:
// every change is a compare-and-swap. An unreachable keeper is a
// *hullmark.Condition with Retry.
type Records interface {
	// Load returns a machine's record; one that has none is returned with its
	// identity alone and the zero Version.
	Load(ctx context.Context, node hullmark.EKID) (Machine, Version, error)
	// Store replaces the record whose version is given and returns the new one's, or ErrConflict.
	Store(ctx context.Context, m Machine, v Version) (Version, error)
	// Claim binds a node's name to one machine, for good; a name that another
	// machine holds is what NameTaken returns.
	Claim(ctx context.Context, name string, node hullmark.EKID) error
	// ClaimAddress binds an address, in its canonical form, to one machine, which may hold it already. One that another machine
	// holds is what AddressTaken returns, unless ClaimYields says that it is the new machine's; "long" is some minutes.
	ClaimAddress(ctx context.Context, address netip.Addr, node hullmark.EKID) error
	// ReleaseAddress gives a machine's claim up; an address that it does not hold is no error.
	ReleaseAddress(ctx context.Context, address netip.Addr, node hullmark.EKID) error
	// Enrol counts a machine to a group, for good; it changes nothing for one that is counted already. A group that has
	// as many machines as it may is what GroupFull returns.
	Enrol(ctx context.Context, group string, node hullmark.EKID, most int) error
	// Leave counts a machine to a group no more; one that is not counted is no error.
	Leave(ctx context.Context, group string, node hullmark.EKID) error
}

// GroupFull is the condition of a group that has as many machines as it may.
func GroupFull(group string, most int) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "group-full", Step: "ATTEST", Title: "the group " + group + " has as many machines as it may", Expected: fmt.Sprintf("at most %d", most), Got: "one more",
		Next: "forget machines that are gone (hullmark node remove), or let the group have more (hullmark policy sign)",
	}
}

// NameTaken is the condition of a name that another machine holds.
func NameTaken(name string, holder, node hullmark.EKID) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "name-taken", Step: "ATTEST", Title: "another machine holds the name " + name, Expected: holder.String(), Got: node.String(),
		Next: "remove the other machine (hullmark node remove " + name + "), or give this one another name in the policy",
	}
}

// CodeNameRests is the code of the condition of a name for which a certificate may be in other hands. It passes by itself.
const CodeNameRests = "name-rests"

// NameRests is that condition. Nobody gets the name before then, not even its former holder: a certificate proves a name, not
// which machine bears it. holder is whose certificates they are.
func NameRests(name string, holder hullmark.EKID, until time.Time) *hullmark.Condition {
	return &hullmark.Condition{
		Code: CodeNameRests, Step: "ATTEST", Title: "the name " + name + " was a removed machine's, whose certificates may be in other hands", Retry: true,
		Expected: "after " + until.UTC().Format(time.RFC3339), Got: "certificates of machine " + holder.String(),
		Next: "wait until they have ended, or give this machine another name in the policy; if nobody else can have them, hullmark node remove " + name + " --gone",
	}
}

// Tokens makes the bootstrap tokens with which kubelets ask for their first certificate.
type Tokens interface {
	// Issue makes a token for this machine alone and returns the whole of it ("id.secret"). Before it
	// makes one, it calls note with the public half, and it makes none if note fails: so no token
	// is ever usable that nobody knows of. With an error, the token that was noted last may have been made all the same.
	Issue(ctx context.Context, m Machine, note func(id string) error) (hullmark.Secret, error)
	// Revoke ends a token; one that is gone already is no error.
	Revoke(ctx context.Context, id string) error
}
