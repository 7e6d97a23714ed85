package canary

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/cluster"
)

// random is text that happens to be nowhere.
func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func newSearch(t *testing.T, secrets Secrets) *Search {
	t.Helper()
	s, err := New(secrets)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// as says whether a secret was found in one form.
func as(found []Finding, form string) bool {
	return slices.ContainsFunc(found, func(f Finding) bool { return f.Secret == "planted" && f.As == form })
}

func TestEveryFormIsFound(t *testing.T) {
	secret := random(t, 32)
	for i := 5; i < len(secret); i += 6 { // Each alignment of base64 has one of its two special characters.
		secret[i-2], secret[i-1], secret[i] = 0xff, 0xef, 0xbe
	}
	s := newSearch(t, Secrets{"planted": secret, "other": random(t, 32)})
	reversed := slices.Clone(secret)
	slices.Reverse(reversed)
	numbers := make([]int, len(secret))
	for i, b := range secret {
		numbers[i] = int(b)
	}
	array, err := json.Marshal(numbers)
	if err != nil {
		t.Fatal(err)
	}
	words := make([]uint64, 4) // as math/big keeps it
	for i := range words {
		words[3-i] = binary.BigEndian.Uint64(secret[8*i:])
	}
	var limbs bytes.Buffer
	if err := binary.Write(&limbs, binary.LittleEndian, words); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		as   string
		text []byte
	}{
		"raw":                {"as it is", secret},
		"the first half":     {"as it is", secret[:16]},
		"the second half":    {"as it is", secret[16:]},
		"the middle":         {"as it is", secret[8:24]},
		"reversed":           {"in reverse", reversed},
		"little-endian":      {"in reverse", limbs.Bytes()},
		"hexadecimal":        {"in hexadecimal digits", fmt.Appendf(nil, "%x", secret)},
		"upper case":         {"in hexadecimal digits", fmt.Appendf(nil, "%X", secret)},
		"printed":            {"in decimal numbers", fmt.Append(nil, secret)},
		"printed in Go":      {"in decimal numbers", bytes.ReplaceAll(fmt.Append(nil, secret), []byte(" "), []byte(", "))},
		"a JSON array":       {"in decimal numbers", array},
		"base64":             {"in base64", []byte(base64.StdEncoding.EncodeToString(secret))},
		"base64 behind 1":    {"in base64", []byte(base64.StdEncoding.EncodeToString(append([]byte("x"), secret...)))},
		"base64 behind 2":    {"in base64", []byte(base64.StdEncoding.EncodeToString(append([]byte("xx"), secret...)))},
		"base64 in between":  {"in base64", []byte(base64.StdEncoding.EncodeToString(slices.Concat([]byte("xxxx"), secret, []byte("yy"))))},
		"base64 for URLs":    {"in base64 for addresses", []byte(base64.RawURLEncoding.EncodeToString(secret))},
		"base64 of base64":   {"in base64 twice", []byte(base64.StdEncoding.EncodeToString([]byte("k: " + base64.StdEncoding.EncodeToString(secret))))},
		"base64, two layers": {"in base64 twice", []byte(base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString(append([]byte("x"), secret...)))))},
	} {
		t.Run(name, func(t *testing.T) {
			for _, around := range []string{"", "before", "b"} {
				if found := s.Text(name, slices.Concat([]byte(around), c.text, []byte(around))); !as(found, c.as) || len(found) > 2 {
					t.Errorf("found %v", found)
				}
			}
		})
	}
	if found := s.Text("", append(random(t, 1<<20), hex.EncodeToString(random(t, 1<<16))...)); len(found) != 0 {
		t.Errorf("found where nothing is: %v", found)
	}
	if found := s.Text("", secret[:15]); len(found) != 0 {
		t.Errorf("found in a part that is too small: %v", found)
	}
}

func TestEveryPlaceIsSearched(t *testing.T) {
	secret := random(t, 32)
	digits := hex.EncodeToString(secret)
	s := newSearch(t, Secrets{"planted": secret})
	dir := t.TempDir()
	for name, plant := range map[string]func(path string) error{
		"in a file": func(path string) error { return os.WriteFile(path, append([]byte("x"), secret...), 0o600) },
		"across two windows": func(path string) error {
			return os.WriteFile(path, slices.Concat(make([]byte, windowSize-7), secret, make([]byte, 9)), 0o600)
		},
		"behind a hole": func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(secret, 1<<36)
			return err
		},
		"in a name": func(path string) error { return os.WriteFile(filepath.Join(filepath.Dir(path), digits), nil, 0o600) },
		"below": func(path string) error {
			if err := os.Mkdir(path, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(path, "f"), secret, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := filepath.Join(dir, name)
			if err := os.Mkdir(tree, 0o700); err != nil {
				t.Fatal(err)
			}
			if found, err := s.Tree(tree); err != nil || len(found) != 0 {
				t.Fatalf("found %v, %v", found, err)
			}
			if err := plant(filepath.Join(tree, "f")); err != nil {
				t.Fatal(err)
			}
			if found, err := s.Tree(tree); err != nil || len(found) != 1 {
				t.Errorf("found %v, %v", found, err)
			}
		})
	}
	if _, err := s.Tree(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there was searched")
	}
}

func TestProcessesAreSearched(t *testing.T) {
	for name, c := range map[string]struct {
		cmd   func(digits string) *exec.Cmd
		where string
	}{
		"arguments": {func(digits string) *exec.Cmd { return exec.Command("sh", "-c", "sleep 1; # "+digits) }, "the arguments of sh"},
		"environment": {func(digits string) *exec.Cmd {
			cmd := exec.Command("sleep", "1")
			cmd.Env = []string{"KEY=" + digits}
			return cmd
		}, "the environment of sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := random(t, 32)
			w := newSearch(t, Secrets{"planted": secret}).Watch()
			if err := c.cmd(hex.EncodeToString(secret)).Run(); err != nil {
				t.Fatal(err)
			}
			found, seen := w.End()
			if !slices.ContainsFunc(found, func(f Finding) bool { return f.Where == c.where }) || seen["sleep"] == 0 {
				t.Errorf("found %v; seen %v", found, seen)
			}
		})
	}
}

func TestClustersSecrets(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := OfCluster(c)
	if err != nil {
		t.Fatal(err)
	}
	s := newSearch(t, secrets)
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]bool{}
	for _, f := range files {
		for _, found := range s.Text(f.GetPath(), f.GetContent()) {
			held[found.Secret] = true
			if f.GetMode() != 0o600 {
				t.Errorf("%s, and others may read it", found)
			}
		}
	}
	// A control plane holds all of them but the root key.
	if len(held) != len(secrets)-1 || len(held) != 7 || held["the root key"] {
		t.Errorf("a control plane's files hold %v", held)
	}
	if _, err := New(Secrets{"short": []byte("correct horse")}); err == nil {
		t.Error("a search for what is met by chance was made")
	}
	if _, err := New(nil); err == nil {
		t.Error("a search for nothing was made")
	}
}
