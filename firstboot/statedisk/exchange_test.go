package statedisk

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
)

// helper answers one request on a socket.
func helper(t *testing.T, answer func(Request, hullmark.Secret) Answer) Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		request, key, err := ReadRequest(conn)
		if err != nil {
			t.Error(err)
			return
		}
		if err := WriteAnswer(conn, answer(request, key)); err != nil {
			t.Error(err)
		}
	}()
	return Client{Path: path}
}

func TestClientOpens(t *testing.T) {
	grant := hullmark.DiskGrant{
		Key: hullmark.NewSecret([]byte("\n0123456789abcdef0123456789abcde")), Generation: 2, UUID: exampleID.UUID, Owner: exampleID.Owner,
		FormatAllowed: true, Epoch: hullmark.Epoch{Committed: 3, Issued: 4},
	}
	want := Opened{EpochRead: 3, Joined: true, LastBoot: "2026-01-01T00:00:00Z"}
	client := helper(t, func(r Request, key hullmark.Secret) Answer {
		g := Grant{Generation: 2, UUID: grant.UUID, Owner: grant.Owner, FormatAllowed: true, Epoch: grant.Epoch}
		if r.Op != OpOpen || r.Disk.Serial != "state" || *r.Grant != g || !key.Equal(grant.Key) {
			t.Errorf("request = %+v with key %t", r, key.Equal(grant.Key))
		}
		return Answer{Opened: &want}
	})
	got, err := client.Open(context.Background(), hullmark.DiskSelector{Serial: "state"}, grant)
	if err != nil || got != want {
		t.Errorf("Open = %+v, %v; want %+v", got, err, want)
	}
}

func TestClientProbes(t *testing.T) {
	want := hullmark.DiskClaim{State: hullmark.DiskReady, UUID: exampleID.UUID, Generation: 1, Owner: exampleID.Owner}
	got, err := helper(t, func(Request, hullmark.Secret) Answer { return Answer{Claim: &want} }).Probe(context.Background(), hullmark.DiskSelector{Path: "/dev/x"})
	if err != nil || got != want {
		t.Errorf("Probe = %+v, %v; want %+v", got, err, want)
	}
}

func TestClientReturnsTheCondition(t *testing.T) {
	client := helper(t, func(Request, hullmark.Secret) Answer {
		return Answer{Failed: &hullmark.Condition{Code: "disk-foreign"}}
	})
	_, err := client.Probe(context.Background(), hullmark.DiskSelector{Path: "/dev/x"})
	var c *hullmark.Condition
	if !errors.As(err, &c) || c.Code != "disk-foreign" {
		t.Errorf("error = %v, want the helper's condition", err)
	}
}

func TestClientStopsWaiting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path) // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := (Client{Path: path}).Probe(ctx, hullmark.DiskSelector{Path: "/dev/x"}); err == nil {
		t.Error("Probe succeeded without an answer")
	}
}

func TestReadRequestRefuses(t *testing.T) {
	for _, text := range []string{
		"", "{}\n", `{"op":"format"}` + "\n", `{"op":"open"}` + "\n", `{"op":"probe","grant":{}}` + "\n",
		`{"op":"open","grant":{}}` + "\nshort key", strings.Repeat(" ", maxMessage+1),
	} {
		if _, _, err := ReadRequest(strings.NewReader(text)); err == nil {
			t.Errorf("request %.40q was accepted", text)
		}
	}
}
