//go:build long

package load

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/cluster"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// vaultToken is what the keeper wants to be shown.
const vaultToken = "s.0123456789abcdef"

// vault is a keeper that speaks as Vault's transit engine does, and that can be away.
type vault struct {
	*httptest.Server
	away            atomic.Bool
	refused, opened atomic.Int64
}

func newKeeper(t *testing.T) *vault {
	v := &vault{}
	v.Server = httptest.NewUnstartedServer(v)
	v.Config.ErrorLog = log.New(io.Discard, "", 0)
	v.StartTLS()
	t.Cleanup(v.Close)
	return v
}

// ServeHTTP wraps by base64 alone: nobody here is to be kept from anything.
func (v *vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if v.away.Load() {
		v.refused.Add(1)
		http.Error(w, `{"errors":["Vault is sealed"]}`, http.StatusServiceUnavailable)
		return
	}
	var in struct{ Plaintext, Ciphertext string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("X-Vault-Token") != vaultToken {
		http.Error(w, `{"errors":["permission denied"]}`, http.StatusForbidden)
		return
	}
	answer := map[string]string{}
	switch path.Dir(r.URL.Path) {
	case "/v1/transit/encrypt":
		answer["ciphertext"] = "vault:v1:" + base64.StdEncoding.EncodeToString([]byte(in.Plaintext))
	case "/v1/transit/decrypt":
		v.opened.Add(1)
		plain, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(in.Ciphertext, "vault:v1:"))
		answer["plaintext"] = string(plain)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"data": answer})
}

// wrap has the keeper wrap the cluster's keyset.
func (v *vault) wrap(ctx context.Context, c *cluster.Cluster) error {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Certificate().Raw})
	shown, err := keeper.NewCredentials([]byte(vaultToken), ca)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return c.SetKeeper(ctx, keys.Access{Open: shown.Open}, "hashivault://hullmark?address="+v.URL, hullmark.NewSecret([]byte(vaultToken)), ca)
}
