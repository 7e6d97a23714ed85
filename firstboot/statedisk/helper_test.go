package statedisk

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"reflect"
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
		FormatAllowed: true, Epoch: hullmark.EpochWindow{Committed: 3, Issued: 4},
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

// FuzzReadRequest holds the helper's reader to what it does with a request: a grant comes with a key, and with nothing but an
// order to open.
func FuzzReadRequest(f *testing.F) {
	key := string(bytes.Repeat([]byte{7}, keySize))
	f.Add([]byte(`{"op":"probe","disk":{"serial":"state"}}` + "\n"))
	f.Add([]byte(`{"op":"open","disk":{"serial":"state"},"grant":{"generation":1,"formatAllowed":true,"epoch":{"committed":1,"issued":2}}}` + "\n" + key))
	f.Add([]byte(`{"op":"open","grant":null}` + "\n" + key))
	f.Fuzz(func(t *testing.T, data []byte) {
		q, secret, err := ReadRequest(bytes.NewReader(data))
		if err != nil {
			return
		}
		if opens := q.Op == OpOpen; opens != (q.Grant != nil) || opens != (secret.Len() == keySize) || !opens && q.Op != OpProbe {
			t.Errorf("%+v was taken, with a key of %d bytes", q, secret.Len())
		}
		if end := bytes.IndexByte(data, '\n'); end < 0 || end >= maxMessage || q.Grant != nil && string(secret.Expose()) != string(data[end+1:][:keySize]) {
			t.Errorf("the key is not what follows the line, which ends at %d", end)
		}
	})
}

// FuzzReadAnswer holds the agent's reader to its bound, and to one meaning for what is written again.
func FuzzReadAnswer(f *testing.F) {
	for _, a := range []Answer{
		{Claim: &hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{1}, Generation: 2, Owner: hullmark.EKID{3}}},
		{Opened: &Opened{EpochRead: 1, Joined: true, LastBoot: "2026-01-02T03:04:05Z"}},
		{Failed: &hullmark.Condition{Code: "disk-tampered", Because: &hullmark.Condition{Code: "x"}}},
	} {
		var line bytes.Buffer
		if err := WriteAnswer(&line, a); err != nil {
			f.Fatal(err)
		}
		f.Add(line.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ReadAnswer(bytes.NewReader(data))
		if err != nil {
			return
		}
		if end := bytes.IndexByte(data, '\n'); end < 0 || end >= maxMessage || a.Failed != nil {
			t.Errorf("%+v was taken, of a line that ends at %d", a, end)
		}
		var line bytes.Buffer
		if err := WriteAnswer(&line, a); err != nil {
			t.Fatal(err)
		}
		if again, err := ReadAnswer(&line); err != nil && line.Len() < maxMessage || err == nil && !reflect.DeepEqual(again, a) {
			t.Errorf("%+v came back as %+v, %v", a, again, err)
		}
	})
}
