package build

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/internal/cache"
)

// Fingerprint condenses everything that an image of o is made from: lock, definitions, sources, options, and the program that builds. Two builds of one
// fingerprint give the same image.
func Fingerprint(o Options) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	parts := []string{o.ID, o.Store.Root, fmt.Sprint(o.WithoutKubernetes), strings.Join(o.Profiles, ",")}
	for _, file := range []string{program, o.LockFile} {
		sum, err := hashFile(file)
		if err != nil {
			return "", err
		}
		parts = append(parts, sum)
	}
	for _, dir := range append(o.folders(), filepath.Join(o.Source, "systemd")) {
		sum, err := hashFolder(dir)
		if err != nil {
			return "", fmt.Errorf("hash definitions: %w", err)
		}
		parts = append(parts, sum)
	}
	sum, err := hashSources(o.Source)
	if err != nil {
		return "", fmt.Errorf("hash sources: %w", err)
	}
	return cache.Key(append(parts, sum)...), nil
}

func hashFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}
