package firstboot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	content := []byte(strings.Repeat("content", 1000))
	fulldisk.Check(t,
		fulldisk.Writer{
			Name: "manifest",
			Before: func(dir string) error {
				return errors.Join(os.Mkdir(filepath.Join(dir, statedisk.AgentDir), 0o700), writeManifest(dir, []byte("before")))
			},
			Write: func(dir string) error { return writeManifest(dir, content) },
		},
		fulldisk.Writer{
			Name: "file of the join",
			Before: func(dir string) error {
				return writeFiles(dir, []*wire.File{{Path: "/etc/kubernetes/admin.conf", Content: []byte("before"), Mode: 0o600}})
			},
			Write: func(dir string) error {
				return writeFiles(dir, []*wire.File{{Path: "/etc/kubernetes/admin.conf", Content: content, Mode: 0o600}})
			},
		},
		fulldisk.Writer{
			Name:   "snapshot of etcd",
			Before: func(dir string) error { return os.MkdirAll(filepath.Join(dir, "var", "lib"), 0o700) },
			Write: func(dir string) error {
				c := &conversation{agent: &Agent{StateDir: dir, Timing: Timing{Proceed: time.Minute}}, stream: piece(content)}
				sum := sha256.Sum256(content)
				return restoring{conversation: c}.storeSnapshot(&wire.Snapshot{Size: uint64(len(content)), Sha256: sum[:]})
			},
		},
		fulldisk.Writer{Name: "sentinel", Write: func(dir string) error {
			return logged(func(log io.Writer) { (&Status{Sentinels: dir, Log: log}).sentinel(sentinelSuccess, string(content)) })
		}},
		fulldisk.Writer{
			Name:   "status",
			Before: func(dir string) error { return os.WriteFile(filepath.Join(dir, "status.json"), []byte("{}"), 0o600) },
			Write: func(dir string) error {
				return logged(func(log io.Writer) { (&Status{File: filepath.Join(dir, "status.json"), Log: log}).storeLocked() })
			},
		},
	)
}

// piece is the stream of an end that sends one piece of a snapshot, and then the same again.
type piece []byte

func (p piece) Send(*wire.FromNode) error { return nil }
func (p piece) Context() context.Context  { return context.Background() }

func (p piece) Recv() (*wire.FromVerifier, error) {
	return &wire.FromVerifier{Message: &wire.FromVerifier_Snapshot{Snapshot: bytes.Clone(p)}}, nil
}

// logged returns as an error the line that was logged, which nobody else is told.
func logged(write func(log io.Writer)) error {
	var log strings.Builder
	if write(&log); log.Len() > 0 {
		return errors.New(strings.TrimSuffix(log.String(), "\n"))
	}
	return nil
}

func writeManifest(dir string, content []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = statedisk.WriteManifest(root, hullmark.NewSecret(make([]byte, 32)), statedisk.Manifest{Files: map[string]statedisk.KeptFile{"a": {Mode: 0o600, Content: content}}})
	return err
}
