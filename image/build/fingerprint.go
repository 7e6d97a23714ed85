package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/hullmark/hullmark/internal/cache"
)

// Fingerprint condenses everything that an image of o and what it says of its inputs are made from: lock, checkout,
// definitions, options, and the program that builds. Two builds of one fingerprint give the same image.
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
	// The digests of provenance leave links and modes out.
	parts := []string{string(inputs), o.ID, o.Store.Root, fmt.Sprint(o.WithoutKubernetes), strings.Join(o.Profiles, ",")}
	for _, dir := range []string{o.Source, o.Config} {
		if dir == "" {
			continue
		}
		h := sha256.New()
		if err := hashInto(h, dir, without(dir, notSources(o)), nil); err != nil {
			return "", fmt.Errorf("hash sources: %w", err)
		}
		parts = append(parts, hex.EncodeToString(h.Sum(nil)))
	}
	for _, file := range []string{program, o.LockFile} {
		sum, err := cache.HashFile(file)
		if err != nil {
			return "", err
		}
		parts = append(parts, sum)
	}
	return cache.Key(parts...), nil
}
