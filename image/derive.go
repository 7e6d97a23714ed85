package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/verity"
)

// derive returns SHA-256("hullmark image 1: " ‖ purpose ‖ NUL ‖ seed). Changing
// a purpose changes every image.
func derive(seed [sha256.Size]byte, purpose string) [sha256.Size]byte {
	return sha256.Sum256(append([]byte("hullmark image 1: "+purpose+"\x00"), seed[:]...))
}

// deriveGUID marks the first 16 bytes as a UUID of version 8, whose content its
// maker chooses (RFC 9562 §5.8).
func deriveGUID(seed [sha256.Size]byte, purpose string) gpt.GUID {
	d := derive(seed, purpose)
	g := gpt.GUID(d[:16])
	g[6] = g[6]&0x0f | 0x80
	g[8] = g[8]&0x3f | 0x80
	return g
}

// seedOf returns the Authenticode digest of the kernel image.
func seedOf(image []byte) ([sha256.Size]byte, error) {
	f, err := pe.Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("kernel image: %w", err)
	}
	h := sha256.New()
	if err := f.Authenticode(h); err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("kernel image: %w", err)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

func volumeID(seed [sha256.Size]byte) uint32 {
	d := derive(seed, "ESP volume id")
	return binary.LittleEndian.Uint32(d[:])
}

// treeParams derives salt and UUID from the digest of the root file system.
func treeParams(rootDigest [sha256.Size]byte) verity.Params {
	return verity.Params{
		Salt: derive(rootDigest, "verity salt"),
		UUID: deriveGUID(rootDigest, "verity UUID"),
	}
}
