package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// upgradeFile is what the upgrade engine of this node is handed (systemd/system/hullmark-upgrade.service): its certificate and its key.
const upgradeFile = "client.pem"

// handUpgrade makes the engine's certificate anew before it is old. The service holds the CA, the engine nothing but this.
func (a *app) handUpgrade(ctx context.Context) error {
	tick := time.NewTicker(clockCheck)
	defer tick.Stop()
	said := ""
	for {
		// The wall clock counts: it is what the other side looks at.
		if now := time.Now().Round(0); now.Before(a.handed) || !now.Before(a.handed.Add(clientAge)) {
			text := errorText(a.writeUpgrade(now))
			if text != "" && text != said {
				a.log.Warn("the upgrade engine of this node gets no certificate", "error", text)
			}
			said = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// writeUpgrade writes that certificate, unless there is no folder for it.
func (a *app) writeUpgrade(now time.Time) error {
	if a.upgrade == "" {
		return nil
	}
	made, err := newClientOf(registry.UpgradeUser, a.credentials.kubernetes, now)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		return fmt.Errorf("upgrade engine's key: %w", err)
	}
	defer clear(key)
	var text bytes.Buffer
	text.Grow(4 << 10) // Not grown while it is written: a copy of a key would stay behind.
	defer func() { clear(text.Bytes()) }()
	for _, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: made.Certificate[0]}, {Type: "PRIVATE KEY", Bytes: key}} {
		if err := pem.Encode(&text, block); err != nil {
			return fmt.Errorf("upgrade engine's certificate: %w", err)
		}
	}
	if err := atomicfile.Write(filepath.Join(a.upgrade, upgradeFile), text.Bytes(), 0o600); err != nil {
		return err
	}
	a.handed = now
	return nil
}
