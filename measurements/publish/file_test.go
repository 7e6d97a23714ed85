package publish

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/internal/imagetest"
)

// counted is how many bytes of bodies a server sent.
type counted struct {
	http.ResponseWriter
	sent *int64
	// left is how many more it sends before it breaks off.
	left *int64
}

func (c counted) Write(b []byte) (int, error) {
	n := min(int64(len(b)), *c.left)
	*c.left -= n
	*c.sent += n
	if written, err := c.ResponseWriter.Write(b[:n]); err != nil || n == int64(len(b)) {
		return written, err
	}
	panic(http.ErrAbortHandler)
}

// TestFetchImageWithoutZeros fetches a real disk, of which most is zero.
func TestFetchImageWithoutZeros(t *testing.T) {
	s := newShopOf(t, imagetest.Small(t, "257"))
	used, err := image.Used(bytes.NewReader(s.image))
	if err != nil {
		t.Fatal(err)
	}
	need := int64(0)
	for _, e := range used {
		need += e.Size
	}
	if size := int64(len(s.image)); need > size/10 {
		t.Fatalf("%d of %d bytes are used", need, size)
	}
	const forWindows = 6 * window
	sent, left := int64(0), int64(0)
	files := http.FileServer(http.Dir(s.dir))
	for name, c := range map[string]struct {
		serve   http.HandlerFunc
		atMost  int64
		cutting bool
	}{
		"ranges":  {files.ServeHTTP, need + forWindows, false},
		"cut off": {files.ServeHTTP, need + 12*forWindows, true},
		"no ranges": {func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			files.ServeHTTP(w, r)
		}, int64(len(s.image)) * 11 / 10, false},
		"ranges of something else, and the right file": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" {
				files.ServeHTTP(w, r)
				return
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(changed(s.image, used[2].Offset+100)))
		}, int64(len(s.image)) + need + forWindows, false},
	} {
		sent = 0
		source := serve(t, s.dir, func(w http.ResponseWriter, r *http.Request) bool {
			c.serve(counted{w, &sent, &left}, r)
			return true
		})
		to := filepath.Join(t.TempDir(), "image")
		left = 1 << 40
		for tries := 0; ; tries++ {
			if c.cutting {
				left = need/10 + forWindows
			}
			err := FetchImage(t.Context(), source, s.document, to, nil)
			if err == nil {
				break
			}
			if !c.cutting || tries == 12 || !strings.Contains(err.Error(), "goes on with it") {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, s.image) {
			t.Errorf("%s: another image came: %v", name, err)
		}
		if sent > c.atMost {
			t.Errorf("%s: %d bytes were sent, want at most %d of %d", name, sent, c.atMost, len(s.image))
		}
	}
}

func changed(b []byte, at int64) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}
