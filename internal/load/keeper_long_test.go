//go:build long

package load

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/vaulttest"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// vault is a keeper that can be away.
type vault struct {
	*vaulttest.Vault
	away            atomic.Bool
	refused, opened atomic.Int64
}

func newKeeper(t *testing.T) *vault {
	v := &vault{Vault: vaulttest.New(t)}
	v.Instead(v.answer)
	return v
}

func (v *vault) answer(w http.ResponseWriter, r *http.Request, _ string) bool {
	if v.away.Load() {
		v.refused.Add(1)
		http.Error(w, `{"errors":["Vault is sealed"]}`, http.StatusServiceUnavailable)
		return true
	}
	if strings.Contains(r.URL.Path, "/decrypt/") {
		v.opened.Add(1)
	}
	return false
}

// wrap has the keeper wrap the cluster's keyset.
func (v *vault) wrap(ctx context.Context, c *cluster.Cluster) error {
	shown, err := keeper.NewCredentials([]byte(vaulttest.Token), v.CA())
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return c.SetKeeper(ctx, keys.Access{Open: shown.Open}, v.Keeper(), hullmark.NewSecret([]byte(vaulttest.Token)), v.CA())
}
