package update

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hullmark/hullmark"
)

// helper answers each connection with answer, and returns a client and what was asked.
func helper(t *testing.T, answer func(net.Conn)) (Client, chan Request) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	asked := make(chan Request, 16)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			q, err := ReadRequest(conn)
			if err == nil {
				asked <- q
				answer(conn)
			}
			_ = conn.Close()
		}
	}()
	return Client{Path: path}, asked
}

func done(conn net.Conn) { _ = Answer{Done: true}.Send(conn) }

// What a trial says is of others, in any script, and is cut to what the helper takes, not refused by it.
func TestExplainCuts(t *testing.T) {
	c, asked := helper(t, done)
	for _, text := range []string{"", "short", strings.Repeat("é", MaxText), strings.Repeat("x", MaxText-1) + "é"} {
		if err := c.Explain(t.Context(), text); err != nil {
			t.Fatalf("%d bytes: %v", len(text), err)
		}
		q := <-asked
		if q.Op != OpExplain || len(q.Text) > MaxText || len(q.Text) < min(len(text), MaxText-1) || !strings.HasPrefix(text, q.Text) || !utf8.ValidString(q.Text) {
			t.Errorf("%d bytes arrived as %d", len(text), len(q.Text))
		}
	}
}

// The agent believes nothing of a helper that says too much, nothing, or hangs up.
func TestClientRefuses(t *testing.T) {
	for name, answer := range map[string]func(net.Conn){
		"hangs up":         func(net.Conn) {},
		"no slots":         done,
		"a line too long":  func(conn net.Conn) { _, _ = conn.Write(bytes.Repeat([]byte("x"), maxMessage+1)) },
		"an unknown field": func(conn net.Conn) { _, _ = conn.Write([]byte(`{"done":true,"more":1}` + "\n")) },
		"two in one line":  func(conn net.Conn) { _, _ = conn.Write([]byte(`{"done":true}{"done":true}` + "\n")) },
	} {
		c, _ := helper(t, answer)
		if got, err := c.Look(t.Context()); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	c, _ := helper(t, func(conn net.Conn) {
		_ = Answer{Slots: &Slots{Running: "a"}}.Send(conn)
		done(conn)
	})
	if got, err := c.Look(t.Context()); err != nil || got.Running != "a" {
		t.Errorf("the positive control: %+v, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c, _ = helper(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
	if _, err := c.Look(ctx); err == nil {
		t.Error("a helper that is silent has answered")
	}
}

// FuzzRequest wants what the helper takes to be bounded, and written as it was read.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"op":"look"}`, `{"op":"stage","rootHash":"` + strings.Repeat("01", 32) + `","disk":"` + strings.Repeat("02", 32) + `","sources":["https://releases.example.com/a"]}`,
		`{"op":"explain","text":"why"}`, `{"op":"try","sources":["x"]}`,
	} {
		f.Add([]byte(seed + "\n"))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		q, err := ReadRequest(bytes.NewReader(line))
		if err != nil {
			return
		}
		if len(q.Text) > MaxText || (q.Op == OpStage) != (len(q.Sources) > 0) {
			t.Errorf("%+v was taken", q)
		}
		var again bytes.Buffer
		if err := writeLine(&again, q); err != nil {
			t.Fatal(err)
		}
		if again.Len() > maxMessage { // JSON writes some bytes as six.
			return
		}
		if _, err := ReadRequest(&again); err != nil {
			t.Errorf("%s is not read again: %v", line, err)
		}
	})
}

// FuzzAnswer wants an answer to be bounded, and a condition in it to be one that can be shown.
func FuzzAnswer(f *testing.F) {
	for _, a := range []Answer{
		{Done: true},
		{Fetched: &Fetched{1, 2, 3}},
		{Slots: &Slots{Running: "b", Default: "a", A: hullmark.RootHash{1}, Text: "why"}},
		{Failed: &hullmark.Condition{Code: "slot-failed", Title: "it cannot be read", Because: &hullmark.Condition{Code: "a"}}},
	} {
		var line bytes.Buffer
		if err := a.Send(&line); err != nil {
			f.Fatal(err)
		}
		f.Add(line.Bytes())
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var a Answer
		if err := readLine(bufio.NewReader(bytes.NewReader(line)), &a); err != nil {
			return
		}
		if a.Failed != nil && len(a.Failed.Error()) > 8*maxMessage {
			t.Error("a condition without an end")
		}
	})
}
