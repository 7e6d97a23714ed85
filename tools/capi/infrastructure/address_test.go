package infrastructure

import (
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// segment plays a network's switch with machines at it, for one question at a time: it answers each ARP request whose target is one
// of the addresses. Everything is compared and made as bytes, from RFC 826.
func segment(t *testing.T, network string, cards map[string]mac) {
	t.Helper()
	run, err := os.MkdirTemp("", runPrefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	l, err := net.Listen("unix", filepath.Join(run, "segment"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := os.Symlink(run, filepath.Join(network, runName)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerAll(conn, cards)
		}
	}()
}

func answerAll(conn net.Conn, cards map[string]mac) {
	defer conn.Close()
	for {
		frame := make([]byte, 4+60)
		if _, err := io.ReadFull(conn, frame); err != nil {
			return
		}
		asker := frame[10:16]
		want := "0000003cffffffffffff" + hex.EncodeToString(asker) + "0806" + "0001080006040001" + hex.EncodeToString(asker) + "00000000" + "000000000000"
		if hex.EncodeToString(frame[:42]) != want {
			continue
		}
		card, has := cards[netip.AddrFrom4([4]byte(frame[42:46])).String()]
		if !has {
			continue
		}
		me := hex.EncodeToString(card[:])
		reply, _ := hex.DecodeString("0000002a" + hex.EncodeToString(asker) + me + "0806" + "0001080006040002" + me + hex.EncodeToString(frame[42:46]) + hex.EncodeToString(asker) + "00000000")
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}

func TestGivenAddress(t *testing.T) {
	network := t.TempDir()
	mine, other, static := cardOf("/a"), cardOf("/b"), cardOf("/c")
	segment(t, network, map[string]mac{"10.0.2.100": other, "10.0.2.107": mine, "10.0.2.21": static})
	for card, want := range map[mac]string{mine: "10.0.2.107", other: "10.0.2.100", static: "invalid IP", cardOf("/d"): "invalid IP"} {
		if got, err := givenAddress(network, card); err != nil || got.String() != want {
			t.Errorf("%x has %v, %v; want %s", card, got, err, want)
		}
	}
	if _, err := givenAddress(t.TempDir(), mine); err == nil {
		t.Error("a network that does not run has addresses")
	}
}

func TestFramesThatAreNoAnswer(t *testing.T) {
	card := cardOf("/a")
	me := hex.EncodeToString(card[:])
	for name, text := range map[string]string{
		"short":         "020000000001" + me + "0806" + "0001080006040002" + me + "0a000264",
		"a request":     "020000000001" + me + "0806" + "0001080006040001" + me + "0a000264" + "020000000001" + "00000000",
		"not ARP":       "020000000001" + me + "0800" + "0001080006040002" + me + "0a000264" + "020000000001" + "00000000",
		"another's":     "020000000001" + me + "0806" + "0001080006040002" + "525400ffffff" + "0a000264" + "020000000001" + "00000000",
		"not the range": "020000000001" + me + "0806" + "0001080006040002" + me + "0a000215" + "020000000001" + "00000000",
		"other network": "020000000001" + me + "0806" + "0001080006040002" + me + "c0a80164" + "020000000001" + "00000000",
	} {
		frame, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if a, ok := answer(frame, card); ok {
			t.Errorf("%s: %v", name, a)
		}
	}
}
