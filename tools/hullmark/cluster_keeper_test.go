package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// keeperSite is an operator's folder: a cluster file, its passphrase, and a local keeper's key.
func keeperSite(t *testing.T) (dir string, set func(url string, more ...string) (int, string)) {
	t.Helper()
	dir = t.TempDir()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	const cheap = 4 // This passphrase guards nothing.
	if _, err := cluster.Create(filepath.Join(dir, "cluster"), hullmark.NewSecret([]byte("correct horse")), c, cheap); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"passphrase": "correct horse\n",
		"key":        base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))) + "\n",
		"token":      "s.0123456789abcdef\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, func(url string, more ...string) (int, string) {
		args := []string{"cluster", "keeper", "set", url, "--cluster", filepath.Join(dir, "cluster"), "--passphrase-file", filepath.Join(dir, "passphrase")}
		return hullmarkCLI(t, append(args, more...)...)
	}
}

func keeperOf(t *testing.T, dir string) *cluster.Keeper {
	t.Helper()
	file, err := cluster.Open(filepath.Join(dir, "cluster"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	return file.Cluster.Keeper
}

func TestClusterKeeperSet(t *testing.T) {
	dir, set := keeperSite(t)
	code, output := set("local://", "--secret-file", filepath.Join(dir, "key"))
	wantExit(t, code, 0, output, "as the keeper wrapped them")
	k := keeperOf(t, dir)
	if k == nil || !strings.Contains(string(k.Sealed), `"keeper":"local://"`) {
		t.Fatal("the cluster file does not hold what the keeper wrapped")
	}
	code, output = set("none")
	wantExit(t, code, 0, output, "in clear")
	if keeperOf(t, dir) != nil {
		t.Error("the keeper is still set")
	}
}

func TestClusterKeeperSetRefuses(t *testing.T) {
	dir, set := keeperSite(t)
	token := filepath.Join(dir, "token")
	for name, c := range map[string]struct {
		code int
		says string
		args []string
	}{
		"a keeper that is down": {exitUnreachable, "keeper-unreachable", []string{"hashivault://k?address=http://127.0.0.1:1", "--secret-file", token, "--wait", "100ms"}},
		"no secret":             {exitUsage, "keeper-setting", []string{"local://"}},
		"a key in the URL":      {exitUsage, "keeper-setting", []string{"local://QUJD"}},
		"a password":            {exitUsage, "keeper-setting", []string{"hashivault://me:password@k?address=https://v", "--secret-file", token}},
		"an unknown kind":       {exitUsage, "keeper-setting", []string{"vault://k"}},
		"none with a secret":    {exitUsage, "no keeper", []string{"none", "--secret-file", token}},
		"no time":               {exitUsage, "--wait", []string{"local://", "--wait", "0s"}},
		"no file":               {exitFailed, "absent", []string{"local://", "--secret-file", filepath.Join(dir, "absent")}},
	} {
		t.Run(name, func(t *testing.T) {
			code, output := set(c.args[0], c.args[1:]...)
			wantExit(t, code, c.code, output, c.says)
			if strings.Contains(output, "s.0123456789abcdef") || strings.Contains(output, "me:password") {
				t.Errorf("the output shows a secret:\n%s", output)
			}
			if keeperOf(t, dir) != nil {
				t.Error("a keeper is set")
			}
		})
	}
}
