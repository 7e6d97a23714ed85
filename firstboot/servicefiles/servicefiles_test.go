package servicefiles

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

// memory is a store that fails with err.
type memory struct {
	files map[string]string
	err   error
}

func (m memory) Read(name string) ([]byte, bool, error) {
	content, found := m.files[name]
	return []byte(content), found, m.err
}

func (m memory) Write(name string, content []byte) error {
	if m.err == nil {
		m.files[name] = string(content)
	}
	return m.err
}

// served returns the files that an agent keeps in the store.
func served(t *testing.T, store Store) (Files, net.Listener) {
	t.Helper()
	dir := t.TempDir()
	listener, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = Serve(listener, store)
	}()
	t.Cleanup(func() { listener.Close(); <-ended })
	return Files{Socket: SocketOf(dir)}, listener
}

func TestFilesAreKept(t *testing.T) {
	store := memory{files: map[string]string{}}
	remote, _ := served(t, store)
	for name, files := range map[string]Files{"by the agent": remote, "in a folder": {Folder: t.TempDir()}} {
		for file, limit := range limits {
			if file == Superseded {
				continue // TestSupersededIsRead
			}
			if _, err := files.File(file).Read(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %s: %v before it was written", file, name, err)
			}
			for _, want := range []string{"first", "", strings.Repeat("x", limit)} {
				if err := files.File(file).Write([]byte(want)); err != nil {
					t.Errorf("%s %s, %d bytes: %v", file, name, len(want), err)
				}
				if got, err := files.File(file).Read(); err != nil || string(got) != want {
					t.Errorf("%s %s: %d bytes, %v, want %d", file, name, len(got), err, len(want))
				}
			}
		}
	}
	if len(store.files) != len(limits)-1 {
		t.Errorf("the agent keeps %d files", len(store.files))
	}
}

// What the agent says of certificates is read, and written by nobody.
func TestSupersededIsRead(t *testing.T) {
	store := memory{files: map[string]string{}}
	remote, _ := served(t, store)
	file := remote.File(Superseded)
	if _, err := file.Read(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of certificates that are as they are to be: %v", err)
	}
	store.files[Superseded] = strings.Repeat("x", MaxSuperseded)
	if got, err := file.Read(); err != nil || len(got) != MaxSuperseded {
		t.Errorf("of others: %d bytes, %v", len(got), err)
	}
	if err := file.Write(nil); err == nil {
		t.Error("it was written")
	}
}

// Whatever is wrong, the service is told, and never that a file is not there.
func TestFilesThatCannotBeKept(t *testing.T) {
	refused := &hullmark.Condition{Code: "manifest-refused", Step: "DISK", Title: "changed", Next: "reboot"}
	none, _ := served(t, memory{err: fs.ErrNotExist})
	other, _ := served(t, memory{err: refused})
	gone, listener := served(t, memory{})
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files Files
		code  string
	}{"the disk is not open": {none, "kept-unreachable"}, "the manifest is another": {other, "manifest-refused"}, "no agent": {gone, "kept-unreachable"}} {
		var told *hullmark.Condition
		if _, err := c.files.File(Policy).Read(); !errors.As(err, &told) || told.Code != c.code || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: read: %v, want %s", name, err, c.code)
		}
		if err := c.files.File(Policy).Write([]byte("x")); !errors.As(err, &told) || told.Code != c.code {
			t.Errorf("%s: write: %v, want %s", name, err, c.code)
		}
	}
}

// Nobody but root gets to the socket by its own path; the unit binds the inner folder.
func TestSocketIsRootsAlone(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // An agent that was killed leaves its socket.
		listener, err := Listen(dir)
		if err != nil {
			t.Fatal(err)
		}
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		listener.Close()
	}
	for name, want := range map[string]fs.FileMode{"kept": 0o700, "kept/joinservice": 0o711, "kept/joinservice/socket": 0o666} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %o", name, info, err, want)
		}
	}
	unit, err := os.ReadFile("../../systemd/system/hullmark-joinservice.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"BindPaths=" + filepath.Dir(SocketOf("/run/hullmark")) + ":" + filepath.Dir(Socket), "ExecStart=/usr/lib/hullmark/joinservice -kept " + Socket} {
		if !strings.Contains(string(unit), line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
	if strings.Contains(string(unit), "StateDirectory") {
		t.Error("the unit has a folder on the disk")
	}
}

func TestRequestsAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"another file":     `{"op":"read","name":"../agent/kubeadm"}` + "\n",
		"the keyset":       `{"op":"read","name":"keyset.json"}` + "\n",
		"read alone":       `{"op":"write","name":"superseded","size":1}` + "\n" + "x",
		"another op":       `{"op":"remove","name":"policy.json"}` + "\n",
		"an unknown field": `{"op":"read","name":"policy.json","mode":438}` + "\n",
		"two values":       `{"op":"read","name":"policy.json"}{}` + "\n",
		"too much":         `{"op":"write","name":"outage-over","size":65}` + "\n" + strings.Repeat("x", 65),
		"less than none":   `{"op":"write","name":"outage-over","size":-1}` + "\n",
		"half":             `{"op":"write","name":"outage-over","size":4}` + "\nab",
		"no end":           `{"op":"read","name":"policy.json"}`,
		"a long line":      `{"op":"read","name":"` + strings.Repeat("x", maxLine) + `"}` + "\n",
	} {
		if q, _, err := readRequest(strings.NewReader(text)); err == nil {
			t.Errorf("%s was taken: %+v", name, q)
		}
	}
	if _, content, err := readRequest(strings.NewReader(`{"op":"write","name":"outage-over","size":4}` + "\nboot")); err != nil || string(content) != "boot" {
		t.Errorf("the positive control: %q, %v", content, err)
	}
}

// FuzzRequest holds what the agent reads of its join service to the limits, and to what is written.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"op":"write","name":"outage-over","size":4}` + "\nboot"))
	f.Add([]byte(`{"op":"read","name":"policy.json"}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		q, content, err := readRequest(bytes.NewReader(text))
		if err != nil {
			return
		}
		if len(content) > limits[q.Name] || len(content) != q.Size {
			t.Fatalf("%+v with %d bytes", q, len(content))
		}
		var again bytes.Buffer
		if err := write(&again, q, content); err != nil {
			t.Fatal(err)
		}
		if p, same, err := readRequest(&again); err != nil || p != q || !bytes.Equal(same, content) {
			t.Errorf("%+v came back as %+v, %v", q, p, err)
		}
	})
}

// FuzzAnswer holds what a join service reads of its agent to the limits.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"size":4}` + "\nboot"))
	f.Add([]byte(`{"absent":true}` + "\n"))
	f.Add([]byte(`{"failed":{"code":"manifest-refused","step":"DISK","title":"changed","next":"reboot"}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for name, limit := range maps.All(limits) {
			if content, err := readAnswer(bytes.NewReader(text), name); err == nil && len(content) > limit {
				t.Fatalf("%s has %d bytes", name, len(content))
			}
		}
	})
}
