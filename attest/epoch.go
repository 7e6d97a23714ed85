package attest

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"github.com/hullmark/hullmark"
)

// epochKeyInfo names the key of a disk under which its node speaks while it is Ready.
const epochKeyInfo = "hullmark/v1/epoch\x00"

// EpochKey derives from a disk's key the one under which its node, once it is Ready, asks for the next number: after the
// fuse it can quote no more, and that it holds this key shows that it is the node that opened the disk.
func EpochKey(disk hullmark.Secret) (hullmark.Secret, error) {
	key, err := disk.Derive(epochKeyInfo, sha256.Size)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("epoch key: %w", err)
	}
	return key, nil
}

// EpochMAC returns HMAC-SHA256 under the epoch key of "hullmark/v1/epoch-claim\0" ‖ channelKey ‖ claim, where channelKey is
// ChannelKey's result and claim the bytes of EpochAsk: it is good on one channel alone.
func EpochMAC(key hullmark.Secret, channelKey, claim []byte) ([]byte, error) {
	if len(channelKey) != ChannelKeySize || key.Len() != sha256.Size {
		return nil, fmt.Errorf("authenticate the epoch's claim: channel key of %d and key of %d bytes, want %d and %d", len(channelKey), key.Len(), ChannelKeySize, sha256.Size)
	}
	h := hmac.New(sha256.New, key.Expose())
	h.Write([]byte("hullmark/v1/epoch-claim\x00"))
	h.Write(channelKey)
	h.Write(claim)
	return h.Sum(nil), nil
}
