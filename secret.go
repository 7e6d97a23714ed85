package hullmark

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"
)

// redacted is all that any kind of printing shows of a Secret.
const redacted = "[secret]"

// errSecretEncode is what every marshaller gets: a secret leaves a process only by Expose.
var errSecretEncode = errors.New("a secret is never marshalled")

// Secret holds key material. It prints as "[secret]" under every verb,
// refuses to be marshalled, compares in constant time and can be wiped.
// The zero value is empty. A Secret must not be copied after Wipe matters:
// copies share the same memory, so wiping one wipes all.
type Secret struct {
	// expose returns the bytes. In a function neither == nor reflection finds them: fmt
	// and reflect.DeepEqual look into unexported fields, where no method of a Secret is called.
	expose func() []byte
}

// NewSecret takes ownership of b: the caller must not use b afterwards. Its
// pages are kept from swap, as far as the system lets this process lock memory.
func NewSecret(b []byte) Secret {
	if len(b) > 0 {
		// Past RLIMIT_MEMLOCK it works as well. The pages stay locked, for other secrets may lie in them.
		_ = syscall.Mlock(b)
	}
	return Secret{expose: func() []byte { return b }}
}

// RandomSecret returns n bytes read from r, which is crypto/rand.Reader in all but tests.
func RandomSecret(r io.Reader, n int) (Secret, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return Secret{}, fmt.Errorf("make a secret of %d bytes: %w", n, err)
	}
	return NewSecret(b), nil
}

// Expose returns the secret's own memory, for the one call that consumes it.
// It must not be kept, appended to, converted to a string or printed.
func (s Secret) Expose() []byte {
	if s.expose == nil {
		return nil
	}
	return s.expose()
}

// Len returns the secret's length in bytes.
func (s Secret) Len() int { return len(s.Expose()) }

// Equal compares in time that depends on the lengths only.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare(s.Expose(), other.Expose()) == 1
}

// Wipe overwrites the secret's memory with zeros. Go may have copied the bytes
// elsewhere before (a growing buffer, a string); makers of secrets avoid that.
func (s Secret) Wipe() { clear(s.Expose()) }

// Derive returns n bytes of HKDF-Expand-SHA256 (RFC 5869 §2.3) under s, which
// must be a uniformly random key of 32 bytes, for the purpose named by info.
func (s Secret) Derive(info string, n int) (Secret, error) {
	if len(s.Expose()) != sha256.Size {
		return Secret{}, fmt.Errorf("derive %q: the key has %d bytes, want %d", info, len(s.Expose()), sha256.Size)
	}
	key, err := hkdf.Expand(sha256.New, s.Expose(), info, n)
	if err != nil {
		return Secret{}, fmt.Errorf("derive %q: %w", info, err)
	}
	return NewSecret(key), nil
}

// String hides the secret.
func (Secret) String() string { return redacted }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return redacted }

// Format hides the secret from every other verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue hides the secret from structured logs.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON always fails.
func (Secret) MarshalJSON() ([]byte, error) { return nil, errSecretEncode }

// MarshalText always fails.
func (Secret) MarshalText() ([]byte, error) { return nil, errSecretEncode }

// MarshalBinary always fails; encoding/gob asks for it.
func (Secret) MarshalBinary() ([]byte, error) { return nil, errSecretEncode }
