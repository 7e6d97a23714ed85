package joinservice

import (
	"crypto/x509"
	"encoding/hex"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
)

// MaxCredentials bounds the certificates that a record lists. A kubelet has one, and a second while it changes over; it asks
// again if an answer was lost.
const MaxCredentials = 8

// credentialRest is how long a certificate that has ended stays listed: what was asked for with it may be seen issued later.
// The API forgets requests within an hour.
const credentialRest = 2 * time.Hour

// Credential is a client certificate that was issued to a machine's kubelet. Several machines, or one machine's several lives,
// may have had certificates for one name: its fingerprint tells them apart.
type Credential struct {
	// Fingerprint is the SHA-256 of the certificate in DER, in hexadecimal, as API servers name the credential of whoever shows it.
	Fingerprint string `json:"sha256"`
	// Ends is when it ends.
	Ends time.Time `json:"ends"`
	// Issuer names the key of the CA that signed it (IssuerOf); empty of one that was noted before a policy committed to the CA.
	Issuer string `json:"issuer,omitempty"`
}

// IssuerOf names the key that signed a certificate, as the certificate says it (RFC 5280 §4.2.1.1), in hexadecimal. Nothing is trusted by
// that: API servers verify signatures.
func IssuerOf(certificate *x509.Certificate) string {
	return hex.EncodeToString(certificate.AuthorityKeyId)
}

// AuthorityID names a CA's key likewise.
func AuthorityID(certificate *x509.Certificate) string {
	return hex.EncodeToString(certificate.SubjectKeyId)
}

// Holds reports whether a certificate is one of those that were seen issued to the machine since its last token.
func (m Machine) Holds(fingerprint string) bool {
	return fingerprint != "" && slices.ContainsFunc(m.Credentials, func(c Credential) bool { return c.Fingerprint == fingerprint })
}

// holdsBeyond reports whether one of the machine's listed certificates lasts beyond a time, and is not of a CA beside the ones named: those
// are trusted.
func (m Machine) holdsBeyond(end time.Time, trusted []string) bool {
	return slices.ContainsFunc(m.Credentials, func(c Credential) bool {
		return c.Ends.After(end) && (c.Issuer == "" || slices.Contains(trusted, c.Issuer))
	})
}

// FormerUntil is until when the machine's kubelet may be known by a certificate that is not of the CA of that name alone: the last of its
// listed ones that says another, or, where none is listed that lasts, the last that it may have got. It is the zero time if there is none
// that lasts beyond now. A control plane's kubelet is given one at its boot, which is in no list, so that only the listed ones count.
func (m Machine) FormerUntil(authority string, now time.Time) (until time.Time) {
	lasting := false
	for _, c := range m.Credentials {
		if !c.Ends.After(now) {
			continue
		}
		lasting = true
		if c.Issuer != authority && c.Ends.After(until) {
			until = c.Ends
		}
	}
	if !lasting && m.Role == hullmark.Worker && m.CertificateEnds.After(now) {
		return m.CertificateEnds
	}
	return until
}

// RecognisedByName reports whether any certificate for the machine's name is taken for its kubelet's. A control plane's is:
// kubeadm makes it there, with the authority on the same disk, so that it was in no request, and whoever has its key could have
// had any.
func (m Machine) RecognisedByName() bool { return m.Role == hullmark.ControlPlane }

// NoteCredential lists a certificate that was seen issued to the machine, and that it may have one until then. Of too many
// those go that end first.
func (m *Machine) NoteCredential(c Credential, now time.Time) {
	c.Ends = c.Ends.UTC().Truncate(time.Second)
	listed := slices.DeleteFunc(slices.Clone(m.Credentials), func(old Credential) bool {
		return old.Fingerprint == c.Fingerprint || now.Sub(old.Ends) > credentialRest
	})
	listed = append(listed, c)
	slices.SortStableFunc(listed, func(a, b Credential) int { return a.Ends.Compare(b.Ends) })
	m.Credentials = listed[max(0, len(listed)-MaxCredentials):]
	if c.Ends.After(m.CertificateEnds) { // The approver's clock, by which that was bounded, may be behind.
		m.CertificateEnds = c.Ends
	}
}

// beginLife makes the certificates that the machine had before another token pass no more: the disk, or who reads it, may be
// another by now. Until when they last stays noted.
func (m *Machine) beginLife(token string) {
	m.Token, m.FirstKey, m.Credentials = token, "", nil
}
