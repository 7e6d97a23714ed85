package publish

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/firstboot/update"
)

// TestNodesFindIt has nodes read the disk of a release where it was published, by parts.
func TestNodesFindIt(t *testing.T) {
	s, h := newShop(t), newRegistry(t, true)
	web := httptest.NewServer(http.FileServer(http.Dir(s.dir)))
	t.Cleanup(web.Close)
	s.publish(t, h.place(t, "shop/node:spring", nil), s.document)
	for _, place := range []string{web.URL, "oci://" + strings.TrimPrefix(h.server.URL, "http://") + "/shop/node:spring"} {
		source, err := update.OpenSource(place, sha256.Sum256(s.image))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range [][2]int64{{0, 100}, {123_456, 700_000}, {int64(len(s.image)) - 5, 5}} {
			part, err := source.Range(t.Context(), r[0], r[1])
			if err != nil {
				t.Errorf("%s: %v", place, err)
				continue
			}
			if got, err := io.ReadAll(part); err != nil || !bytes.Equal(got, s.image[r[0]:r[0]+r[1]]) {
				t.Errorf("%s: %d bytes, %v", place, len(got), err)
			}
			if err := part.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
