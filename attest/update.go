package attest

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"github.com/hullmark/hullmark"
)

// UpdateMAC returns HMAC-SHA256 under the epoch key of "hullmark/v1/update-claim\0" ‖ channelKey ‖ claim, where claim is the bytes of
// UpdateAsk's: it is good on one channel alone, and for no epoch.
func UpdateMAC(key hullmark.Secret, channelKey, claim []byte) ([]byte, error) {
	if len(channelKey) != ChannelKeySize || key.Len() != sha256.Size {
		return nil, fmt.Errorf("authenticate the update's claim: channel key of %d and key of %d bytes, want %d and %d", len(channelKey), key.Len(), ChannelKeySize, sha256.Size)
	}
	h := hmac.New(sha256.New, key.Expose())
	h.Write([]byte("hullmark/v1/update-claim\x00"))
	h.Write(channelKey)
	h.Write(claim)
	return h.Sum(nil), nil
}
