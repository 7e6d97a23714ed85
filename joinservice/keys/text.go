package keys

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"

	"github.com/hullmark/hullmark"
)

// Encrypt returns a secret as text that may be public, under the newest master key, for one purpose. What it returns differs each time.
func (k Keyset) Encrypt(first hullmark.ClusterRoot, purpose string, secret hullmark.Secret) (hullmark.EncryptedText, error) {
	e := hullmark.EncryptedText{Generation: k.Current(), Purpose: purpose}
	if !hullmark.ValidPurpose(purpose) {
		return e, fmt.Errorf("encrypt: %.80q: want a path or a URL of letters, digits and : / _ . -, at most %d", purpose, hullmark.MaxPurpose)
	}
	if n := secret.Len(); n == 0 || n > hullmark.MaxPlaintext {
		return e, fmt.Errorf("encrypt: a secret of %d bytes, want 1 to %d", n, hullmark.MaxPlaintext)
	}
	aead, err := k.textCipher(e.Generation, first)
	if err != nil {
		return e, fmt.Errorf("encrypt: %w", err)
	}
	e.Box = aead.Seal(nil, nil, secret.Expose(), []byte(purpose))
	return e, nil
}

// Decrypt returns the secret in a text that Encrypt returned, of this cluster and for the purpose that it names. The caller wipes it.
func (k Keyset) Decrypt(first hullmark.ClusterRoot, e hullmark.EncryptedText) (hullmark.Secret, error) {
	aead, err := k.textCipher(e.Generation, first)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("decrypt the text for %.80q: %w", e.Purpose, err)
	}
	plain, err := aead.Open(nil, nil, e.Box, []byte(e.Purpose))
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("decrypt the text for %.80q: it was changed, or encrypted for another purpose or by another cluster's file", e.Purpose)
	}
	return hullmark.NewSecret(plain), nil
}

// textCipher is AES-256-GCM with random nonces (NIST SP 800-38D, 8.2.2) under HKDF-SHA256 of a generation's master key, with the
// cluster's first root as salt and "hullmark/v1/text\0" as info.
func (k Keyset) textCipher(generation uint32, first hullmark.ClusterRoot) (cipher.AEAD, error) {
	master, ok := k.masters[generation]
	if !ok {
		return nil, fmt.Errorf("the keyset has no generation %d", generation)
	}
	key, err := hkdf.Key(sha256.New, master.Expose(), first[:], "hullmark/v1/text\x00", Size)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
