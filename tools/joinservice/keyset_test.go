package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// A keyset that a keeper wrapped: machines wait for as long as the keeper cannot open it, and no longer.
func TestKeysetWaitsForItsKeeper(t *testing.T) {
	s := newSite(t)
	c, err := readCredentials(s.credentials)
	if err != nil {
		t.Fatal(err)
	}
	clearly, err := keys.Parse(c.keyset)
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte(base64.StdEncoding.EncodeToString(random(t, 32)))
	shown, err := keeper.NewCredentials(bytes.Clone(secret), nil)
	if err != nil {
		t.Fatal(err)
	}
	wrapped, err := keys.Access{Open: shown.Open}.Seal(t.Context(), clearly, c.id(), "local://")
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "keyset.json", wrapped)
	s.write(t, "keeper.crt", nil)

	open := func(key []byte) (*app, func()) {
		s.write(t, "keeper.secret", key)
		a, err := prepare(options{credentials: s.credentials, files: servicefiles.Files{Folder: s.state}, api: apiServer, log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = a.openKeyset(ctx) // what stands in its way is what machines are told
		}()
		return a, func() { cancel(); <-ended }
	}

	a, stop := open([]byte(base64.StdEncoding.EncodeToString(random(t, 32))))
	cause := told(t, a, func(c *hullmark.Condition) bool { return c.Code != keys.CodeUnreachable })
	if cause.Code != keys.CodeRefused || !cause.Retry {
		t.Errorf("with another key machines are told %+v", cause)
	}
	stop()

	a, stop = open(secret)
	defer stop()
	until := time.Now().Add(20 * time.Second)
	for a.keyset.Current() == 0 && time.Now().Before(until) {
		time.Sleep(10 * time.Millisecond)
	}
	want, err := clearly.DiskKey(1, c.id(), s.node.ID, hullmark.UUID{7})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a.keyset.DiskKey(1, c.id(), s.node.ID, hullmark.UUID{7}); err != nil || !got.Equal(want) {
		t.Errorf("the opened keyset derives another key: %v", err)
	}
	s.handsOn(t, a, "keyset.json", wrapped)
	s.handsOn(t, a, "keeper.secret", secret)
}

// A keyset in clear is handed on as it lies on the disk, although what was opened of it is cleared.
func TestOpenedKeysetIsHandedOn(t *testing.T) {
	s := newSite(t)
	want, err := os.ReadFile(filepath.Join(s.credentials, "keyset.json"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := prepare(options{credentials: s.credentials, files: servicefiles.Files{Folder: s.state}, api: apiServer, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.handsOn(t, a, "keyset.json", want)
	if err := a.openKeyset(t.Context()); err != nil || a.keyset.Current() == 0 {
		t.Fatalf("generation %d: %v", a.keyset.Current(), err)
	}
	if bytes.Equal(a.credentials.keyset, want) {
		t.Error("the keyset stays in memory")
	}
	s.handsOn(t, a, "keyset.json", want)
}

// handsOn gets a control plane's files as one that joins does, which clears what it was given, and again.
func (s *site) handsOn(t *testing.T, a *app, name string, want []byte) {
	t.Helper()
	for range 2 {
		files, err := a.service.ControlPlanes.Files()
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(files, func(f *wire.File) bool { return f.GetPath() == "/var/lib/hullmark/"+name })
		if at < 0 || !bytes.Equal(files[at].GetContent(), want) || files[at].GetMode() != 0o600 {
			t.Fatalf("%s is not handed on as it lies on the disk", name)
		}
		clear(files[at].GetContent())
	}
}

// told waits until machines are told what is wanted.
func told(t *testing.T, a *app, wanted func(*hullmark.Condition) bool) *hullmark.Condition {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		_, err := a.keyset.DiskKey(1, hullmark.ClusterRoot{}, hullmark.EKID{}, hullmark.UUID{})
		var cause *hullmark.Condition
		if errors.As(err, &cause) && wanted(cause) {
			return cause
		}
	}
	t.Fatal("machines are told nothing of the kind")
	return nil
}

func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}
