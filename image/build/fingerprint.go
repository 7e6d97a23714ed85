package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hullmark/hullmark/internal/cache"
)

// Fingerprint condenses everything that an image of o and what it says of its inputs are made from: lock, checkout, definitions, options, and the program
// that builds. Two builds of one fingerprint give the same image.
func Fingerprint(ctx context.Context, o Options) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	j := job{Options: o}
	if _, err := j.readInputs(ctx); err != nil {
		return "", err
	}
	inputs, err := json.Marshal(j.inputs)
	if err != nil {
		return "", err
	}
	parts := []string{string(inputs), o.ID, o.Store.Root, fmt.Sprint(o.WithoutKubernetes), strings.Join(o.Profiles, ",")}
	for _, file := range []string{program, o.LockFile} {
		sum, err := hashFile(file)
		if err != nil {
			return "", err
		}
		parts = append(parts, sum)
	}
	return cache.Key(parts...), nil
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
