package keys

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/hullmark/hullmark"
)

const (
	// maxSealed bounds the document that Seal returns, in bytes.
	maxSealed = 2 * maxCiphertext
	// maxURL bounds a keeper's URL, in bytes.
	maxURL = 2 << 10
)

// sealed is a keyset that a keeper wrapped, as a control plane's disk holds it
// (docs/keepers.md). Nothing in it is secret.
type sealed struct {
	// Version is 2: 1 is the keyset in clear.
	Version    int    `json:"version"`
	Keeper     string `json:"keeper"`
	Ciphertext []byte `json:"ciphertext"`
}

func (s sealed) encode() ([]byte, error) {
	encoded, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("wrapped keyset: %w", err)
	}
	return encoded, nil
}

// parseSealed strictly reads what encode writes; wrapped is false for a keyset in clear.
// No error quotes the document, which may be a keyset in clear.
func parseSealed(encoded []byte) (s sealed, wrapped bool, err error) {
	if len(encoded) > maxSealed {
		return sealed{}, false, fmt.Errorf("keyset file: %d bytes, at most %d are allowed", len(encoded), maxSealed)
	}
	var kind struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(encoded, &kind); err != nil {
		return sealed{}, false, errors.New("keyset file: it is no document of JSON with a version")
	}
	if kind.Version == 1 {
		return sealed{}, false, nil
	}
	if kind.Version != 2 {
		return sealed{}, false, fmt.Errorf("keyset file: version %d, want 1 (in clear) or 2 (wrapped by a keeper)", kind.Version)
	}
	if err := hullmark.DecodeStrict(encoded, len(encoded), &s); err != nil {
		return sealed{}, false, errors.New("wrapped keyset: want version, keeper and ciphertext, and nothing else")
	}
	if len(s.Ciphertext) == 0 || len(s.Ciphertext) > maxCiphertext {
		return sealed{}, false, fmt.Errorf("wrapped keyset: a ciphertext of %d bytes, want 1 to %d", len(s.Ciphertext), maxCiphertext)
	}
	if err := checkURL(s.Keeper); err != nil {
		return sealed{}, false, fmt.Errorf("wrapped keyset: %w", err)
	}
	return s, true, nil
}

// KeeperURL returns the keeper's URL in the document that Seal made.
func KeeperURL(document []byte) (string, error) {
	s, wrapped, err := parseSealed(document)
	if err == nil && !wrapped {
		err = errors.New("keyset file: no keeper wrapped it")
	}
	return s.Keeper, err
}

// checkURL refuses what no keeper's URL is. It does not quote the URL, into
// which somebody may have written a password.
func checkURL(keeper string) error {
	u, err := url.Parse(keeper)
	if err != nil || len(keeper) > maxURL || u.Scheme == "" || u.Opaque != "" {
		return fmt.Errorf("the keeper's URL: want SCHEME://… of at most %d bytes", maxURL)
	}
	if u.User != nil || u.Fragment != "" {
		return errors.New("the keeper's URL: no user, password or fragment is allowed in it; it is written in clear")
	}
	return nil
}
