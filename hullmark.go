// Package hullmark holds the nouns that two or more rooms of Hullmark speak:
// secrets, identities, the node's configuration, tickets and conditions.
//
// It uses the standard library only and performs no input or output: every
// function is a pure computation on its arguments.
package hullmark

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// EKID is the identity of a machine: for a TPM,
// SHA-256("hullmark/v1/id/tpm\0" ‖ TPMT_PUBLIC of its endorsement key).
// It is public, and is decided from evidence, never from a name that the machine claims.
type EKID [sha256.Size]byte

// EKIDOf returns the identity of the TPM whose endorsement key has the
// given TPMT_PUBLIC, in the marshalled form of TPM 2.0 Part 2 §12.2.4
// (without a TPM2B size prefix).
func EKIDOf(ekPublic []byte) EKID {
	return sha256.Sum256(append([]byte("hullmark/v1/id/tpm\x00"), ekPublic...))
}

// ParseEKID reads the 64 hexadecimal digits that String writes; spaces may part them, as a machine's screen shows them.
func ParseEKID(s string) (EKID, error) {
	var id EKID
	if err := decodeHex(id[:], strings.ReplaceAll(s, " ", "")); err != nil {
		return EKID{}, fmt.Errorf("EKID: %w", err)
	}
	return id, nil
}

// String returns the identity as 64 lower-case hexadecimal digits.
func (id EKID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText writes String's form; it makes EKID usable as a JSON string and map key.
func (id EKID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes, and nothing with spaces.
func (id *EKID) UnmarshalText(text []byte) error {
	var read EKID
	if err := decodeHex(read[:], string(text)); err != nil {
		return fmt.Errorf("EKID: %w", err)
	}
	*id = read
	return nil
}

// ClusterRoot names a cluster: the SHA-256 of its root key's
// SubjectPublicKeyInfo (RFC 5280 §4.1.2.7, DER).
type ClusterRoot [sha256.Size]byte

// ClusterRootOf returns the cluster root of a root key given as DER SubjectPublicKeyInfo.
func ClusterRootOf(spki []byte) ClusterRoot { return sha256.Sum256(spki) }

// MaxCrossCertificates is how many roots before the present one may still be named by nodes' configurations: each has handed
// the cluster over to the next.
const MaxCrossCertificates = 2

// ParseClusterRoot reads the 64 hexadecimal digits that String writes.
func ParseClusterRoot(s string) (ClusterRoot, error) {
	var root ClusterRoot
	if err := decodeHex(root[:], s); err != nil {
		return ClusterRoot{}, fmt.Errorf("cluster root: %w", err)
	}
	return root, nil
}

// String returns the root as 64 lower-case hexadecimal digits.
func (r ClusterRoot) String() string { return hex.EncodeToString(r[:]) }

// MarshalText writes String's form.
func (r ClusterRoot) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (r *ClusterRoot) UnmarshalText(text []byte) (err error) {
	*r, err = ParseClusterRoot(string(text))
	return err
}

// Role is what a node is in its cluster. The zero value is no role.
type Role string

// The roles that a membership rule can give.
const (
	ControlPlane Role = "control-plane"
	Worker       Role = "worker"
)

// Valid reports whether r is one of the roles that exist.
func (r Role) Valid() bool { return r == ControlPlane || r == Worker }

// ConfigEvent returns the data that a node measures into PCR 8 for its configuration.
func ConfigEvent(nodeConfig []byte) []byte {
	digest := sha256.Sum256(nodeConfig)
	return append([]byte("hullmark/v1/config\x00"), digest[:]...)
}

// ClusterEvent returns the data that a node measures into PCR 15, the fuse,
// once its state disk is open: from then on it can earn no further ticket in this boot.
func ClusterEvent(root ClusterRoot) []byte {
	return append([]byte("hullmark/v1/cluster\x00"), root[:]...)
}

// SigningInput returns what a cluster's root key signs over a document of the
// given kind: "hullmark/v1/<kind>\0" ‖ clusterRoot ‖ bytes. The kind keeps a
// signature made for one purpose from serving another.
func SigningInput(kind string, root ClusterRoot, document []byte) []byte {
	input := append([]byte("hullmark/v1/"+kind+"\x00"), root[:]...)
	return append(input, document...)
}

func decodeHex(dst []byte, s string) error {
	if len(s) != hex.EncodedLen(len(dst)) {
		return fmt.Errorf("want %d hexadecimal digits, got %d characters", hex.EncodedLen(len(dst)), len(s))
	}
	decoded, err := hex.DecodeString(s)
	if err != nil {
		return err
	}
	copy(dst, decoded)
	if hex.EncodeToString(dst) != s {
		return fmt.Errorf("want lower-case hexadecimal digits")
	}
	return nil
}

// nodeName is a label of RFC 1123 §2.1, in lower case as Kubernetes wants it.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// notNames are the labels under which others than nodes are reached: API
// servers by their certificates, and each machine by itself. A node's serving
// certificate names the node, so none may have one of these.
var notNames = []string{"kubernetes", "localhost"}

// hookPattern is stricter than systemd.unit(5): one service, no instance, no path.
var hookPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}\.service$`)

// ValidHook reports whether a node may be told to start the unit: a service of its image that is not one of Hullmark's own,
// which start when their time has come.
func ValidHook(unit string) bool {
	return hookPattern.MatchString(unit) && !strings.HasPrefix(unit, "hullmark-") && unit != "kubelet.service" && unit != "containerd.service"
}

// ValidNodeName reports whether a node can have the name: it becomes its host name and its name in Kubernetes, so it is one DNS
// label of at most 63 bytes, and not one of those that mean something else.
func ValidNodeName(name string) bool {
	return nodeName.MatchString(name) && !slices.Contains(notNames, name)
}

// MaxProviderID is the longest provider ID, in bytes.
const MaxProviderID = 512

// providerID leaves out what a shell, systemd or YAML could read as more than text: it becomes a flag of the kubelet.
var providerID = regexp.MustCompile(`^[a-z][a-z0-9+.-]{0,31}://[A-Za-z0-9/._:+=@-]+$`)

// ValidProviderID reports whether a node can have the provider ID, which is what its infrastructure calls the machine (Kubernetes'
// Node, spec.providerID): a scheme, "://" and what the provider says after it, MaxProviderID bytes at most.
func ValidProviderID(id string) bool { return len(id) <= MaxProviderID && providerID.MatchString(id) }
