// Package canary looks for known secrets where they must not be: in files, in what programs print, in the arguments and the
// environment of processes.
package canary

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/cluster"
)

// A secret is looked for piece by piece, since what leaks may be a part of it, or have a line's end in it: so many bytes, each
// time so many bytes further.
const pieceSize, stride = 16, 8

// Secrets are what is looked for, by the names that findings give them.
type Secrets map[string][]byte

// OfCluster returns the secrets of a cluster file that are drawn at random: the private keys' scalars, and the master keys.
func OfCluster(c *cluster.Cluster) (Secrets, error) {
	s := Secrets{}
	for name, key := range map[string]*ecdsa.PrivateKey{
		"the root key": c.Root.Key, "the online CA's key": c.Online.Key, "the Kubernetes CA's key": c.Kubernetes.Key,
		"etcd's CA's key": c.Etcd.Key, "the front proxy's CA's key": c.FrontProxy.Key, "the kubelets' CA's key": c.KubeletServing.Key, "the service accounts' key": c.ServiceAccount,
	} {
		scalar, err := key.Bytes()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s[name] = scalar
	}
	encoded, err := c.Keys.Encode()
	if err != nil {
		return nil, err
	}
	var keyset struct {
		Masters map[string][]byte `json:"masters"`
	}
	if err := json.Unmarshal(encoded, &keyset); err != nil {
		return nil, err
	}
	for generation, master := range keyset.Masters {
		s["the master key of generation "+generation] = master
	}
	return s, nil
}

// Finding is a secret that was found.
type Finding struct {
	// Where is a path, or what the text is.
	Where string
	// Secret is its name in Secrets, As the form in which it is there.
	Secret, As string
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s, %s", f.Where, f.Secret, f.As) }

// needle is a piece of a secret in one form.
type needle struct {
	text       []byte
	secret, as string
}

// Search looks for secrets. It can be used by several goroutines.
type Search struct {
	// begins tells of any two bytes whether a needle begins with them, needles which.
	begins  [1 << 16]bool
	needles map[uint16][]needle
	longest int
}

// New returns a search for secrets, which have 16 bytes at least: what is shorter may be met by chance.
func New(secrets Secrets) (*Search, error) {
	if len(secrets) == 0 {
		return nil, fmt.Errorf("there is nothing to look for")
	}
	s := &Search{needles: map[uint16][]needle{}}
	for name, secret := range secrets {
		if len(secret) < pieceSize {
			return nil, fmt.Errorf("%s has %d bytes, too few to be looked for", name, len(secret))
		}
		for at := 0; at < len(secret)-pieceSize; at += stride {
			s.add(name, secret[at:][:pieceSize])
		}
		s.add(name, secret[len(secret)-pieceSize:])
	}
	return s, nil
}

func (s *Search) add(name string, piece []byte) {
	for as, texts := range forms(piece) {
		for _, text := range texts {
			begin := binary.BigEndian.Uint16(text)
			s.begins[begin] = true
			s.needles[begin] = append(s.needles[begin], needle{text, name, as})
			s.longest = max(s.longest, len(text))
		}
	}
}

// forms are the forms in which a piece of a secret is looked for.
func forms(piece []byte) map[string][][]byte {
	reversed := slices.Clone(piece)
	slices.Reverse(reversed)
	decimal := strings.Trim(fmt.Sprint(piece), "[]")
	digits := hex.EncodeToString(piece)
	inBase64 := aligned(base64.RawStdEncoding, piece)
	var twice [][]byte
	for _, once := range inBase64 {
		twice = append(twice, aligned(base64.RawStdEncoding, once)...)
	}
	return map[string][][]byte{
		"as it is":                {piece},
		"in reverse":              {reversed},
		"in hexadecimal digits":   {[]byte(digits), []byte(strings.ToUpper(digits))},
		"in decimal numbers":      {[]byte(decimal), []byte(strings.ReplaceAll(decimal, " ", ",")), []byte(strings.ReplaceAll(decimal, " ", ", "))},
		"in base64":               inBase64,
		"in base64 for addresses": slices.DeleteFunc(aligned(base64.RawURLEncoding, piece), func(text []byte) bool { return !bytes.ContainsAny(text, "-_") }),
		"in base64 twice":         twice,
	}
}

// aligned encodes a text as it looks behind 0, 1 and 2 other bytes, without the characters that depend on its neighbours.
func aligned(encoding *base64.Encoding, text []byte) (all [][]byte) {
	for before := range 3 {
		encoded := encoding.EncodeToString(append(make([]byte, before), text...))
		first := (before*8 + 5) / 6
		all = append(all, []byte(encoded[first:(before+len(text))*8/6]))
	}
	return all
}

// Text looks in a text; where is what findings say of its place.
func (s *Search) Text(where string, text []byte) (found []Finding) {
	for at := 0; at+1 < len(text); at++ {
		begin := uint16(text[at])<<8 | uint16(text[at+1])
		if !s.begins[begin] {
			continue
		}
		for _, n := range s.needles[begin] {
			if f := (Finding{where, n.secret, n.as}); bytes.HasPrefix(text[at:], n.text) && !slices.Contains(found, f) {
				found = append(found, f)
			}
		}
	}
	return found
}
