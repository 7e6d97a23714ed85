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
	"github.com/hullmark/hullmark/firstboot/install"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/internal/imagetest"
	"github.com/hullmark/hullmark/internal/powercut"
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

// What a medium says of itself, and an installation's course, reach the agent; a helper that says less is not believed.
func TestClientOnAMedium(t *testing.T) {
	c, asked := helper(t, func(conn net.Conn) {
		_ = Answer{Slots: &Slots{Medium: true}}.Send(conn)
		_ = Answer{Config: []byte("{}")}.Send(conn)
		_ = Answer{Installing: &Installing{Doing: "writing", Percent: 3}}.Send(conn)
		_ = Answer{Installed: &Installed{Disk: "/dev/sda"}}.Send(conn)
		done(conn)
	})
	if medium, err := c.OnMedium(t.Context()); !medium || err != nil {
		t.Errorf("%v, %v", medium, err)
	}
	if config, err := c.Config(t.Context()); string(config) != "{}" || err != nil {
		t.Errorf("%q, %v", config, err)
	}
	var told []Installing
	got, err := c.Install(t.Context(), hullmark.RootHash{7}, bytes.Repeat([]byte("c"), hullmark.MaxNodeConfig), func(i Installing) { told = append(told, i) })
	if err != nil || got.Disk != "/dev/sda" || len(told) != 1 || told[0].Percent != 3 {
		t.Errorf("%+v, %+v, %v", got, told, err)
	}
	for _, want := range []Op{OpLook, OpConfig, OpInstall} {
		if q := <-asked; q.Op != want || (len(q.Config) > 0) != (want == OpInstall) || (q.RootHash[0] == 7) != (want == OpInstall) {
			t.Errorf("asked for %s of release %s with %d bytes of configuration, want %s", q.Op, q.RootHash, len(q.Config), want)
		}
	}
	silent, _ := helper(t, done)
	if _, err := silent.Install(t.Context(), hullmark.RootHash{7}, []byte("{}"), func(Installing) {}); err == nil {
		t.Error("an installation of nothing was believed")
	}
}

// A medium does what a medium is for, and nothing else.
func TestHelperOnAMedium(t *testing.T) {
	h := Helper{Medium: &install.Medium{Device: bytes.NewReader(make([]byte, 1<<20)), Size: 1 << 20}, Variables: Variables(t.TempDir())}
	ask := func(q Request) (all []Answer) {
		if err := h.Answer(t.Context(), q, func(a Answer) error { all = append(all, a); return nil }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := ask(Request{Op: OpLook}); all[0].Slots == nil || !all[0].Slots.Medium {
		t.Errorf("%+v", all)
	}
	for _, op := range []Op{OpConfig, OpInstall, OpTry, OpCommit, OpStage} {
		if all := ask(Request{Op: op, Config: []byte("{}")}); all[len(all)-1].Failed == nil {
			t.Errorf("%s of a medium that is none: %+v", op, all)
		}
	}
}

// The configuration lies on the disk that was booted from, if that has a place for one.
func TestConfigOfADisk(t *testing.T) {
	stub := imagetest.Stub(t, "257")
	root := bytes.Repeat([]byte("r"), 1<<20)
	for _, size := range []int64{0, 1} {
		raw := imagetest.Disk(t, image.Parts{
			Stub: stub, Kernel: stub, Initrd: []byte("initrd"), OSRelease: []byte("ID=test\n"), Root: bytes.NewReader(root), RootSize: int64(len(root)),
			Time: time.Unix(1700000000, 0), Slot: slot.Sizes{Config: size},
		})
		m := installed(t, published{raw: raw})
		d, err := Open(powercut.Unaligned{Disk: powercut.NewDisk(m, int64(len(raw)))}, int64(len(raw)), slot.A)
		if err != nil {
			t.Fatal(err)
		}
		if d.config != nil {
			if _, err := m.WriteAt([]byte("{}"), d.config.Offset()); err != nil {
				t.Fatal(err)
			}
		}
		config, err := d.Config()
		if want := map[int64]string{0: "", 1: "{}"}[size]; string(config) != want || (err == nil) != (size > 0) {
			t.Errorf("with room for %d: %q, %v", size, config, err)
		}
	}
}
