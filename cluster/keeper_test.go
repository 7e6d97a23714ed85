package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// localAccess reaches a keeper whose key is 32 times b.
func localAccess(t *testing.T, b string) (keys.Access, keeper.Credentials) {
	t.Helper()
	c, err := keeper.NewCredentials([]byte(base64.StdEncoding.EncodeToString([]byte(strings.Repeat(b, 32)))), nil)
	if err != nil {
		t.Fatal(err)
	}
	return keys.Access{Open: c.Open}, c
}

func contents(t *testing.T, c *Cluster) map[string][]byte {
	t.Helper()
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, f := range files {
		found[f.GetPath()] = f.GetContent()
	}
	return found
}

func TestAKeeperWrapsTheKeysetOnDisks(t *testing.T) {
	f := newFile(t)
	access, credentials := localAccess(t, "k")
	if err := f.Update(func(c *Cluster) error {
		return c.SetKeeper(t.Context(), access, "local://", credentials.Secret, []byte("authority"))
	}); err != nil {
		t.Fatal(err)
	}
	c := reopen(t, f).Cluster
	found := contents(t, c)
	clear, err := c.Keys.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range found {
		if bytes.Contains(content, clear[24:64]) {
			t.Errorf("%s holds the keyset in clear", path)
		}
	}
	if string(found[stateDir+"keeper.secret"]) != string(credentials.Secret.Expose()) || string(found[stateDir+"keeper.crt"]) != "authority" {
		t.Error("the keeper's secret or authority is not among the files")
	}
	loaded, err := access.Load(t.Context(), found[stateDir+"keyset.json"], c.ID())
	if err != nil {
		t.Fatal(err)
	}
	one, oneErr := loaded.DiskKey(1, c.ID(), hullmark.EKID{}, hullmark.UUID{})
	two, twoErr := c.Keys.DiskKey(1, c.ID(), hullmark.EKID{}, hullmark.UUID{})
	if oneErr != nil || twoErr != nil || !one.Equal(two) {
		t.Error("the keeper opens another keyset")
	}
}

func TestWithoutAKeeperTheKeysetIsClear(t *testing.T) {
	c := newFile(t).Cluster
	found := contents(t, c)
	if _, err := keys.Parse(found[stateDir+"keyset.json"]); err != nil {
		t.Error(err)
	}
	if secret, ok := found[stateDir+"keeper.secret"]; !ok || len(secret) != 0 {
		t.Errorf("keeper.secret is there: %t, with %d bytes; want it empty", ok, len(secret))
	}
}

func TestAKeeperThatFailsChangesNothing(t *testing.T) {
	f := newFile(t)
	access := keys.Access{Open: func(context.Context, string) (keys.Keeper, error) { return nil, keys.Refused("no") }}
	err := f.Update(func(c *Cluster) error { return c.SetKeeper(t.Context(), access, "local://", hullmark.Secret{}, nil) })
	var c *hullmark.Condition
	if !errors.As(err, &c) || c.Code != keys.CodeRefused || f.Cluster.Keeper != nil || reopen(t, f).Cluster.Keeper != nil {
		t.Errorf("got %v", err)
	}
}

func TestFilesRefuseAGenerationThatIsNotWrapped(t *testing.T) {
	c := newFile(t).Cluster
	access, credentials := localAccess(t, "k")
	if err := c.SetKeeper(t.Context(), access, "local://", credentials.Secret, nil); err != nil {
		t.Fatal(err)
	}
	c.Keeper.Generation++
	if _, err := c.Files(); err == nil || !strings.Contains(err.Error(), "keeper set") {
		t.Errorf("got %v", err)
	}
}
