package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// handed is a folder with what the unit hands over.
func handed(t *testing.T, notBefore, notAfter time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: notBefore, NotAfter: notAfter, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, dir, authorityFile, certificate)
	write(t, dir, clientFile, append(certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...))
	return dir
}

func write(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateIsUsedForHalfItsLife(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for name, c := range map[string]struct {
		before, after, want time.Duration
		refused             bool
	}{
		"fresh":                      {-time.Hour, 23 * time.Hour, 11 * time.Hour, false},
		"one that nobody made anew":  {-20 * time.Hour, 4 * time.Hour, 4 * time.Hour, false},
		"one that has ended":         {-25 * time.Hour, -time.Hour, 0, true},
		"of a clock that went ahead": {time.Hour, 25 * time.Hour, 13 * time.Hour, false},
	} {
		got, err := readCredentials(handed(t, now.Add(c.before), now.Add(c.after)))
		if err != nil {
			t.Fatal(err)
		}
		ends, err := got.lasts(now)
		if (err != nil) != c.refused || err == nil && !ends.Equal(now.Add(c.want)) {
			t.Errorf("%s: until %v, %v", name, ends.Sub(now), err)
		}
	}
}

func TestCredentialsAreChecked(t *testing.T) {
	now := time.Now()
	for name, spoil := range map[string]func(dir string){
		"no certificate": func(dir string) { write(t, dir, clientFile, nil) },
		"no key":         func(dir string) { write(t, dir, clientFile, []byte("-----BEGIN CERTIFICATE-----\n")) },
		"no authority":   func(dir string) { _ = os.Remove(filepath.Join(dir, authorityFile)) },
		"another one's key": func(dir string) {
			write(t, dir, clientFile, append(contentOf(t, dir, authorityFile), keyOf(t, handed(t, now, now))...))
		},
		"too much": func(dir string) { write(t, dir, authorityFile, make([]byte, maxCredential+1)) },
	} {
		dir := handed(t, now, now.Add(time.Hour))
		if _, err := readCredentials(dir); err != nil {
			t.Fatal(err)
		}
		spoil(dir)
		if _, err := readCredentials(dir); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := readCredentials(""); err == nil || !strings.Contains(err.Error(), "hullmark-upgrade.service") {
		t.Error(err)
	}
}

func contentOf(t *testing.T, dir, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func keyOf(t *testing.T, dir string) []byte {
	t.Helper()
	_, key := pem.Decode(contentOf(t, dir, clientFile))
	return key
}

// Without an API server the engine runs, and ends when it is told to; with an old certificate it ends by itself, so that systemd loads
// the next one.
func TestEngineWithoutAnAPI(t *testing.T) {
	var journal strings.Builder
	o := options{api: "https://127.0.0.1:1", port: 1, notify: func(string) {}, log: slog.New(slog.NewTextHandler(&journal, nil))}
	o.credentials = handed(t, time.Now().Add(-time.Hour), time.Now().Add(23*time.Hour))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := run(ctx, o); err != nil {
		t.Error(err)
	}
	if !strings.Contains(journal.String(), "api-unreachable") {
		t.Errorf("the journal is %s", journal.String())
	}
	if err := untilEnd(t.Context(), time.Now().Add(-time.Second)); !errors.Is(err, errRenew) {
		t.Errorf("it does not end: %v", err)
	}
	if o.port = 0; run(t.Context(), o) == nil {
		t.Error("port 0 was taken")
	}
	o.port, o.credentials = 1, handed(t, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	if err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "join service") {
		t.Errorf("with a certificate that has ended: %v", err)
	}
}
