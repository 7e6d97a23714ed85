package joinservice

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	fulldisk.Check(t, fulldisk.Writer{
		Name:   "policy",
		Before: func(dir string) error { return os.WriteFile(filepath.Join(dir, "policy"), []byte("before"), 0o600) },
		Write: func(dir string) error {
			return writeCache(servicefiles.Plain(filepath.Join(dir, "policy")), SignedPolicy{})
		},
	})
}
