package pcrs

import (
	"bytes"
	"crypto"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/authenticode"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/pe"
)

// databases are the entries of db and dbx, in their order.
type databases struct {
	allowed, forbidden []authenticode.Entry
	// timestamps says that there is a dbt, with which firmware may let a signature stand that is older than its certificate's revocation.
	timestamps bool
}

// verdict is what firmware decides about an image when Secure Boot is on.
type verdict struct {
	// refused says why the image is not started; empty if it is.
	refused string
	// authorities are the entries of db that it was found by, as places in it: firmware measures them, even if it then refuses the image.
	authorities []int
}

// openDatabases reads the variables. Of dbt it only matters whether there is one: timestamps are not judged here.
func openDatabases(db, dbx, dbt []byte) (d databases, err error) {
	d.timestamps = len(dbt) > 0
	if d.allowed, err = authenticode.ParseLists(db); err != nil {
		return d, fmt.Errorf("variable db: %w", err)
	}
	if d.forbidden, err = authenticode.ParseLists(dbx); err != nil {
		return d, fmt.Errorf("variable dbx: %w", err)
	}
	return d, nil
}

// imageHashes are the types of entries with the hash of an image.
var imageHashes = map[crypto.Hash]efi.GUID{
	crypto.SHA256: authenticode.TypeSHA256, crypto.SHA384: authenticode.TypeSHA384, crypto.SHA512: authenticode.TypeSHA512,
}

// certificateHashes are the types of entries with the hash of what is signed in a certificate.
var certificateHashes = map[efi.GUID]crypto.Hash{
	authenticode.TypeX509SHA256: crypto.SHA256, authenticode.TypeX509SHA384: crypto.SHA384, authenticode.TypeX509SHA512: crypto.SHA512,
}

// judge decides as EDK2 does (SecurityPkg, DxeImageVerificationHandler): the signatures in their order, each against dbx and, until
// one is found, against db, certificates before hashes.
func (d databases) judge(f *pe.File) (v verdict, err error) {
	signatures, err := f.Signatures()
	if err != nil {
		return v, err
	}
	if len(signatures) == 0 {
		return d.judgeUnsigned(f)
	}
	var by []string
	for i, der := range signatures {
		s, err := authenticode.ParseSignature(der)
		if err != nil {
			return v, fmt.Errorf("signature %d of %d: %w", i+1, len(signatures), err)
		}
		digest, err := imageDigest(f, s.Hash)
		if err != nil {
			return v, err
		}
		by = append(by, signedBy(s, digest))
		if v.refused, err = d.revoked(s, digest); err != nil || v.refused != "" {
			return v, err
		}
		if len(v.authorities) > 0 {
			continue
		}
		if err := d.allow(&v, s, digest); err != nil {
			return v, fmt.Errorf("signature %d of %d: %w", i+1, len(signatures), err)
		}
	}
	if len(v.authorities) == 0 {
		v.refused = fmt.Sprintf("no entry of db allows it: it is signed by %s, and db has %s", strings.Join(by, " and by "), describe(d.allowed))
	}
	return v, nil
}

// judgeUnsigned looks for the hash of an image in both databases. Builds differ in whether they look for others than SHA-256 here.
func (d databases) judgeUnsigned(f *pe.File) (v verdict, err error) {
	for _, hash := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} { // in one order, so that one image has one answer
		kind := imageHashes[hash]
		digest, err := imageDigest(f, hash)
		if err != nil {
			return v, err
		}
		revoked, allowed := find(d.forbidden, kind, digest), find(d.allowed, kind, digest)
		switch {
		case hash != crypto.SHA256 && (revoked >= 0 || allowed >= 0):
			return v, fmt.Errorf("it is not signed, and db or dbx has its %v digest: some builds of firmware look for that, and others do not", hash)
		case revoked >= 0:
			return verdict{refused: fmt.Sprintf("dbx revokes it: it has the image's %v digest", hash)}, nil
		case allowed >= 0:
			v.authorities = []int{allowed}
		}
	}
	if len(v.authorities) == 0 {
		v.refused = "it is not signed, and db does not have its SHA-256 digest"
	}
	return v, nil
}

// imageDigest is the digest of an image, by Authenticode's rules.
func imageDigest(f *pe.File, hash crypto.Hash) ([]byte, error) {
	h := hash.New()
	if err := f.Authenticode(h); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// find returns the place of the first entry that begins with data, or -1.
func find(entries []authenticode.Entry, kind efi.GUID, data []byte) int {
	return slices.IndexFunc(entries, func(e authenticode.Entry) bool { return e.Type == kind && bytes.HasPrefix(e.Data(), data) })
}

// revoked says how dbx forbids an image with a signature, if it does (EDK2, IsForbiddenByDbx).
func (d databases) revoked(s authenticode.Signature, digest []byte) (string, error) {
	if len(d.forbidden) == 0 {
		return "", nil
	}
	at, c, err := verifying(d.forbidden, s, digest)
	if err != nil {
		return "", fmt.Errorf("variable dbx: %w", err)
	}
	if at >= 0 {
		return fmt.Sprintf("dbx revokes it: it has the certificate %s, which verifies the signature", subject(c)), nil
	}
	for _, c := range s.Signers() {
		hit, err := d.revokes(c)
		if err != nil {
			return "", err
		}
		if hit {
			return fmt.Sprintf("dbx revokes it: it has the hash of the certificate %s, which signed it", subject(c)), nil
		}
	}
	if find(d.forbidden, imageHashes[s.Hash], digest) >= 0 {
		return fmt.Sprintf("dbx revokes it: it has the image's %v digest", s.Hash), nil
	}
	return "", nil
}

// revokes reports whether dbx has the hash of a certificate. The time behind the hash is that from which on it is revoked; it only counts
// where a timestamp of the signature is one that dbt vouches for (EDK2, PassTimestampCheck).
func (d databases) revokes(c *authenticode.Certificate) (bool, error) {
	for _, e := range d.forbidden {
		hash, ok := certificateHashes[e.Type]
		if !ok {
			continue
		}
		h := hash.New()
		h.Write(c.Signed)
		since, found := bytes.CutPrefix(e.Data(), h.Sum(nil))
		if found && d.timestamps && len(bytes.Trim(since, "\x00")) > 0 {
			return false, fmt.Errorf("dbx revokes the certificate %s from a time on, and there is a dbt: %w", subject(c), authenticode.ErrNotJudged)
		}
		if found {
			return true, nil
		}
	}
	return false, nil
}

// allow looks for what lets a signed image start (EDK2, IsAllowedByDb): the first certificate that verifies the signature, unless its
// hash is in dbx; else the image's hash.
func (d databases) allow(v *verdict, s authenticode.Signature, digest []byte) error {
	at, c, err := verifying(d.allowed, s, digest)
	if err != nil {
		return fmt.Errorf("variable db: %w", err)
	}
	revoked := false
	if at >= 0 {
		if revoked, err = d.revokes(c); err != nil {
			return err
		}
	}
	if at < 0 || revoked {
		at = find(d.allowed, imageHashes[s.Hash], digest)
	}
	if at >= 0 {
		v.authorities = append(v.authorities, at)
	}
	return nil
}

// verifying returns the first certificate that verifies a signature over a digest, and its place; -1 if there is none.
func verifying(entries []authenticode.Entry, s authenticode.Signature, digest []byte) (int, *authenticode.Certificate, error) {
	if !bytes.Equal(s.Digest, digest) {
		return -1, nil, nil
	}
	for i, e := range entries {
		if e.Type != efi.CertX509 {
			continue
		}
		c, err := authenticode.ParseCertificate(e.Data())
		if err != nil {
			return -1, nil, fmt.Errorf("entry %d: %w: %w", i+1, err, authenticode.ErrNotJudged)
		}
		ok, err := s.VerifiedBy(c)
		if err != nil {
			return -1, nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		if ok {
			return i, c, nil
		}
	}
	return -1, nil, nil
}

// signedBy names who signed an image.
func signedBy(s authenticode.Signature, digest []byte) string {
	var names []string
	for _, c := range s.Signers() {
		name := subject(c)
		if !c.SelfIssued() {
			name += fmt.Sprintf(" (issued by %q)", shortName(c.Issuer))
		}
		names = append(names, name)
	}
	text := strings.Join(names, " with ")
	if !bytes.Equal(s.Digest, digest) {
		text += ", over another digest than the image's"
	}
	return text
}

// subject is a certificate's name, quoted.
func subject(c *authenticode.Certificate) string { return fmt.Sprintf("%q", shortName(c.Name)) }

// maxCertificateName is how much of a certificate's name is shown, in bytes.
const maxCertificateName = 80

func shortName(name string) string {
	text := printableText(name)
	return text[:min(len(text), maxCertificateName)]
}

// maxDescribed is how many certificates a message names.
const maxDescribed = 8

// describe says what a database holds.
func describe(entries []authenticode.Entry) string {
	var names []string
	hashes, others := 0, 0
	for _, e := range entries {
		switch e.Type {
		case efi.CertX509:
			names = append(names, certificateName(e))
		case authenticode.TypeSHA256, authenticode.TypeSHA384, authenticode.TypeSHA512:
			hashes++
		default:
			others++
		}
	}
	if more := len(names) - maxDescribed; more > 0 {
		names = append(names[:maxDescribed], fmt.Sprintf("%d certificates more", more))
	}
	if hashes > 0 {
		names = append(names, fmt.Sprintf("%d hashes of images", hashes))
	}
	if others > 0 {
		names = append(names, fmt.Sprintf("%d other entries", others))
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// certificateName names the certificate of an entry.
func certificateName(e authenticode.Entry) string {
	c, err := authenticode.ParseCertificate(e.Data())
	if err != nil {
		return "a certificate that cannot be read"
	}
	return subject(c)
}

// loads reports whether firmware loads an image, and measures by which entry of db: always and by none, unless Secure Boot is on.
// Otherwise it says why not.
func (p *predictor) loads(f *pe.File) (refused string, err error) {
	if p.state != secureBootOn {
		return "", nil
	}
	v, err := p.databases.judge(f)
	if err != nil {
		return "", err
	}
	for _, at := range v.authorities {
		p.measureAuthority(at)
	}
	return v.refused, nil
}

// measureAuthority adds the event of an entry of db, the first time that it lets something start (EDK2, MeasureVariable in
// DxeImageVerificationLib).
func (p *predictor) measureAuthority(at int) {
	entry := p.databases.allowed[at]
	if p.authorities[string(entry.Raw)] {
		return
	}
	if p.authorities == nil {
		p.authorities = map[string]bool{}
	}
	p.authorities[string(entry.Raw)] = true
	e := variableEvent(efi.ImageSecurity, "db", entry.Raw, EvVariableAuthority)
	e.Source.Number, e.Source.Count = at+1, len(p.databases.allowed)
	if c, err := authenticode.ParseCertificate(entry.Data()); err == nil && entry.Type == efi.CertX509 {
		e.Source.Section = shortName(c.Name)
	}
	p.add(e)
}
