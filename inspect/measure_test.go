package inspect

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/internal/imagetest"
	"github.com/hullmark/hullmark/measurements"
)

// opened opens a small disk with this os-release.
func opened(t *testing.T, osRelease string) (measurements.Image, error) {
	t.Helper()
	stub, root := imagetest.Stub(t, "257"), bytes.Repeat([]byte("root"), 64<<10)
	raw := imagetest.Disk(t, image.Parts{
		Stub: stub, Kernel: stub, Initrd: []byte("initrd"), OSRelease: []byte(osRelease), Cmdline: "quiet",
		Root: bytes.NewReader(root), RootSize: int64(len(root)), Time: time.Unix(1767225600, 0),
	})
	_, described, err := Open(bytes.NewReader(raw), int64(len(raw)))
	return described, err
}

// What an image says of its programs is in its kernel image, and so in PCR 11: nobody who measures it has to be told.
func TestImageSaysItsVersions(t *testing.T) {
	want := hullmark.Versions{Kubernetes: hullmark.Version{Major: 1, Minor: 36, Patch: 3}, Etcd: hullmark.Version{Major: 3, Minor: 6, Patch: 8}}
	got, err := opened(t, "ID=test\nIMAGE_ID=node\nIMAGE_VERSION=1\n"+want.OSRelease())
	if err != nil || got.Versions != want || got.ID != "node" || got.Version != "1" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err = opened(t, "ID=test\nIMAGE_ID=node\nIMAGE_VERSION=1\n"); err != nil || got.Versions != (hullmark.Versions{}) {
		t.Errorf("an image without: %+v, %v", got.Versions, err)
	}
	if _, err = opened(t, "ID=test\nIMAGE_ID=node\nIMAGE_VERSION=1\nHULLMARK_KUBERNETES=1.36\n"); err == nil || !strings.Contains(err.Error(), "HULLMARK_KUBERNETES") {
		t.Errorf("an image that says it in another form: %v", err)
	}
}
