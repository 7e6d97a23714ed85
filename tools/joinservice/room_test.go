package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/fulldisk"
)

func TestWritesWithoutRoom(t *testing.T) {
	fulldisk.Check(t,
		fulldisk.Writer{
			Name:   "seen",
			Before: func(dir string) error { return os.WriteFile(filepath.Join(dir, "seen"), []byte("before"), 0o600) },
			Write:  func(dir string) error { return writeSeen(servicefiles.Plain(filepath.Join(dir, "seen")), nil) },
		},
		fulldisk.Writer{
			Name: "end of an outage",
			Before: func(dir string) error {
				return os.WriteFile(filepath.Join(dir, "over"), []byte("an earlier boot"), 0o600)
			},
			Write: func(dir string) error {
				var log strings.Builder
				o := outage{boot: "this boot", ended: servicefiles.Plain(filepath.Join(dir, "over")), log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
				if o.end(); log.Len() > 0 {
					return errors.New(strings.TrimSuffix(log.String(), "\n"))
				}
				return nil
			},
		},
	)
}
