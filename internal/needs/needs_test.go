package needs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// played is a machine whose programs and files are in a temporary folder, and PATH leads nowhere else.
type played struct {
	Machine
	bin string
}

// play returns a machine that has all that verbs need.
func play(t *testing.T) played {
	t.Helper()
	dir := t.TempDir()
	p := played{Machine: Machine{Root: filepath.Join(dir, "root"), Work: filepath.Join(dir, "work"), Cache: filepath.Join(dir, "cache"), Arch: "amd64", User: 1000}, bin: filepath.Join(dir, "bin")}
	for _, name := range []string{
		"sh", "bwrap", "unshare", "newuidmap", "dpkg-deb", "dpkg", "tar", "apt-get", "git", "linux.uml", "gcc", "localedef", "mount", "ip",
		"qemu-system-x86_64", "swtpm", "swtpm_setup", "swtpm_localca", "docker-credential-secretservice",
	} {
		p.program(t, name, "exit 0")
	}
	p.program(t, "go", "echo go version go1.26.8 linux/amd64")
	for name, content := range map[string]string{
		"/usr/bin/python3": "", "/usr/include/unistd.h": "", "/usr/share/i18n/locales/tr_TR": "", "/usr/share/keyrings/debian-archive-keyring.gpg": "",
		"/etc/apt/sources.list": "deb http://archive.example/debian trixie main\n", "/etc/ssl/certs/ca-certificates.crt": "",
		"/usr/share/OVMF/OVMF_CODE_4M.fd": "", "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd": "", "/usr/share/OVMF/OVMF_VARS_4M.fd": "", "/usr/lib/ipxe/qemu/efi-virtio.rom": "",
		"/dev/kvm": "", "/dev/tpmrm0": "", "/proc/meminfo": "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n",
		"/proc/sys/vm/max_map_count": "1048576\n", "/proc/sys/kernel/yama/ptrace_scope": "1\n",
		"/home/.docker/config.json": `{"credsStore":"secretservice"}`,
	} {
		p.file(t, filepath.Join(p.Root, name), content, 0o755)
	}
	p.file(t, filepath.Join(p.Work, "out/tools/usr/bin/fsck.erofs"), "", 0o755)
	p.file(t, filepath.Join(p.Work, "out/kubectl"), "", 0o755)
	p.file(t, filepath.Join(p.Cache, "tools/x"), "", 0o644) // The test's own machine may have no room.
	t.Setenv("PATH", p.bin)
	t.Setenv("HOME", filepath.Join(p.Root, "home"))
	for _, name := range []string{"GOPROXY", "GOENV", "XDG_CONFIG_HOME", "DOCKER_CONFIG", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		t.Setenv(name, "")
	}
	return p
}

func (p played) file(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// program makes a script that is found in PATH.
func (p played) program(t *testing.T, name, script string) {
	t.Helper()
	p.file(t, filepath.Join(p.bin, name), "#!/bin/sh\n"+script+"\n", 0o755)
}

// without takes a program, or a file by its absolute path, away.
func (p played) without(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(p.bin, name)
	if filepath.IsAbs(name) {
		path = filepath.Join(p.Root, name)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// other returns what was not found as it should be, in the order of the table; room depends on the machine that tests run on.
func (p played) other(t *testing.T, verbs ...string) []Finding {
	t.Helper()
	return slices.DeleteFunc(Look(t.Context(), p.Machine, verbs), func(f Finding) bool {
		return f.State == Found || strings.HasPrefix(f.What, "room")
	})
}

func TestEverythingIsThere(t *testing.T) {
	p := play(t)
	for _, f := range p.other(t, Verbs()...) {
		t.Errorf("%+v", f)
	}
	if all := Look(t.Context(), p.Machine, []string{"eventlog"}); len(all) > 0 {
		t.Errorf("a verb that needs nothing needs %v", all)
	}
}

func TestLookTellsWhatIsMissingAndWrong(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*testing.T, *played)
		verb   string
		want   string // state, thing, remedy and "stops" of all that is not as it should be
	}{
		"a program": {
			func(t *testing.T, p *played) { p.without(t, "dpkg-deb") }, "lock",
			"missing dpkg-deb: apt-get install dpkg, stops",
		},
		"a program that cannot be executed": {
			func(t *testing.T, p *played) {
				p.without(t, "swtpm")
				p.file(t, filepath.Join(p.bin, "swtpm"), "", 0o644)
			}, "vm",
			"missing swtpm: apt-get install swtpm; or name a tools tree (--tools, or tools in a machine file), stops",
		},
		"a program at its place": {
			func(t *testing.T, p *played) { p.without(t, "/usr/bin/python3") }, "build",
			"missing /usr/bin/python3: apt-get install python3, stops",
		},
		"no namespaces": {
			func(t *testing.T, p *played) { p.program(t, "bwrap", "echo not allowed >&2; exit 1") }, "diff",
			"wrong namespaces of one's own: where the machine or a container allows none, docs/ci.md says what to do, stops",
		},
		"namespaces, for root": {
			func(t *testing.T, p *played) { p.program(t, "bwrap", "exit 1"); p.User = 0 }, "diff", "",
		},
		"no user IDs": {
			func(t *testing.T, p *played) { p.program(t, "unshare", "exit 1") }, "build",
			"wrong user IDs for namespaces: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER; where the machine or a container allows none, docs/ci.md says what to do, stops",
		},
		"no Go":           {func(t *testing.T, p *played) { p.without(t, "go") }, "lock", "missing go: apt-get install golang-go; go1.21 or newer, where need be from https://go.dev/dl, stops"},
		"an old Go":       {func(t *testing.T, p *played) { p.program(t, "go", "echo go version go1.19.8 linux/amd64") }, "lock", "wrong go: go1.21 or newer, where need be from https://go.dev/dl, stops"},
		"another program": {func(t *testing.T, p *played) { p.program(t, "go", "echo a game") }, "lock", "wrong go: go1.21 or newer, where need be from https://go.dev/dl, stops"},
		"a broken Go":     {func(t *testing.T, p *played) { p.program(t, "go", "exit 1") }, "lock", "wrong go: go1.21 or newer, where need be from https://go.dev/dl, stops"},
		"no proxy":        {func(t *testing.T, _ *played) { t.Setenv("GOPROXY", "off") }, "lock", "wrong Go's module proxy: go env -u GOPROXY, or name a proxy"},
		"no proxy, set": {func(t *testing.T, p *played) {
			p.file(t, filepath.Join(p.Root, "home/.config/go/env"), "GOSUMDB=x\nGOPROXY=off\n", 0o644)
		}, "lock", "wrong Go's module proxy: go env -u GOPROXY, or name a proxy"},
		"no mirror": {func(t *testing.T, p *played) { p.without(t, "/etc/apt/sources.list") }, "lock", "wrong a mirror in APT's configuration: name a mirror with --mirror"},
		"no keys":   {func(t *testing.T, p *played) { p.without(t, "/usr/share/keyrings/debian-archive-keyring.gpg") }, "build", "missing keys of Debian's archive: apt-get install debian-archive-keyring"},
		"no git":    {func(t *testing.T, p *played) { p.without(t, "git") }, "build", ""},
		"no git, in a repository": {
			func(t *testing.T, p *played) {
				p.without(t, "git")
				p.file(t, filepath.Join(p.Work, ".git"), "", 0o644)
			}, "build",
			"missing git: apt-get install git, stops",
		},
		"no KVM": {func(t *testing.T, p *played) { p.without(t, "/dev/kvm") }, "vm", "missing /dev/kvm: a machine with KVM, and usermod --append --groups kvm USER"},
		"little memory": {func(t *testing.T, p *played) {
			p.file(t, filepath.Join(p.Root, "proc/meminfo"), "MemAvailable: 1048576 kB\n", 0o644)
		}, "vm", "wrong memory for a machine: give it less"},
		"few maps": {func(t *testing.T, p *played) {
			p.file(t, filepath.Join(p.Root, "proc/sys/vm/max_map_count"), "65530\n", 0o644)
		}, "reproduce", "wrong memory maps: sysctl vm.max_map_count=1048576"},
		"no limit of maps": {func(t *testing.T, p *played) { p.without(t, "/proc/sys/vm/max_map_count") }, "reproduce", ""},
		"nobody looks": {func(t *testing.T, p *played) {
			p.file(t, filepath.Join(p.Root, "proc/sys/kernel/yama/ptrace_scope"), "3\n", 0o644)
		}, "build", "wrong processes that look at others: sysctl kernel.yama.ptrace_scope is 3 until the next boot"},
		"no firmware":      {func(t *testing.T, p *played) { p.without(t, "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd") }, "vm", "missing OVMF with Secure Boot: apt-get install ovmf"},
		"no authorities":   {func(t *testing.T, p *played) { p.without(t, "/etc/ssl/certs/ca-certificates.crt") }, "fetch", "missing certificate authorities: apt-get install ca-certificates"},
		"a login's keeper": {func(t *testing.T, p *played) { p.without(t, "docker-credential-secretservice") }, "publish", "missing programs that keep logins: install them, or correct Docker's configuration"},
		"no configuration": {func(t *testing.T, p *played) {
			p.file(t, filepath.Join(p.Root, "home/.docker/config.json"), "{", 0o644)
		}, "publish", "wrong programs that keep logins: install them, or correct Docker's configuration"},
		"no login":        {func(t *testing.T, p *played) { p.without(t, "/home/.docker/config.json") }, "publish", ""},
		"no image":        {func(t *testing.T, p *played) { _ = os.RemoveAll(filepath.Join(p.Work, "out")) }, "render", "missing the image's kubeadm: hullmark build"},
		"another machine": {func(_ *testing.T, p *played) { p.Arch = "arm64" }, "diff", "wrong x86-64 processor: use such a machine: images, and the tools tree, are for these, stops"},
		"no TPM":          {func(t *testing.T, p *played) { p.without(t, "/dev/tpmrm0") }, "node", "missing TPM: a machine with a TPM 2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t)
			c.change(t, &p)
			var got []string
			for _, f := range p.other(t, c.verb) {
				text := fmt.Sprintf("%s %s: %s", f.State, f.What, f.Remedy)
				if f.Stops() {
					text += ", stops"
				}
				got = append(got, text)
				if f.Note == "" || f.Verb != c.verb {
					t.Errorf("%+v", f)
				}
			}
			if strings.Join(got, "\n") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Room is looked for where the folder will be.
func TestRoom(t *testing.T) {
	absent := func(Machine) string { return filepath.Join(t.TempDir(), "not", "there") }
	if note, err := room(absent, 1)(t.Context(), Machine{}); err != nil || !strings.Contains(note, "GB are free in") {
		t.Errorf("%q, %v", note, err)
	}
	if _, err := room(absent, 1<<62)(t.Context(), Machine{}); err == nil || !strings.Contains(err.Error(), "GB are free in") {
		t.Error(err)
	}
}

// Three builds are made in out, where reproduce makes them without --out, which may be on another disk than the working folder.
func TestRoomForThreeBuildsIsInOut(t *testing.T) {
	p := play(t)
	out := filepath.Join(p.Work, "out")
	for _, want := range []string{out, p.Work} { // The second time there is no out.
		found := slices.DeleteFunc(Look(t.Context(), p.Machine, []string{"reproduce"}), func(f Finding) bool { return !strings.HasPrefix(f.What, "room for three builds") })
		if len(found) != 1 || !strings.HasSuffix(strings.TrimSuffix(found[0].Note, ", of 21 GB"), "are free in "+want) {
			t.Errorf("it looked at %+v, want %s", found, want)
		}
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
	}
}

// What a proxy's URL holds is not repeated.
func TestProxyIsNotTold(t *testing.T) {
	t.Setenv("GOPROXY", "https://user:password@proxy.example")
	if note, err := moduleProxy(t.Context(), Machine{}); err != nil || strings.Contains(note, "password") {
		t.Errorf("%q, %v", note, err)
	}
}

func TestRelations(t *testing.T) {
	recommends, suggests := Relations("amd64")
	for _, name := range []string{"bubblewrap", "ca-certificates", "debian-archive-keyring", "golang-go", "ovmf", "python3", "qemu-system-x86", "swtpm", "swtpm-tools", "uidmap"} {
		if !slices.Contains(recommends, name) || slices.Contains(suggests, name) {
			t.Errorf("%s: recommended are %q, suggested %q", name, recommends, suggests)
		}
	}
	for _, name := range []string{"gcc", "ipxe-qemu", "locales", "user-mode-linux"} {
		if !slices.Contains(suggests, name) || slices.Contains(recommends, name) {
			t.Errorf("%s: recommended are %q, suggested %q", name, recommends, suggests)
		}
	}
	if recommends, suggests = Relations("arm64"); !slices.Equal(recommends, []string{"ca-certificates"}) || len(suggests) > 0 {
		t.Errorf("where no image is built: recommended are %q, suggested %q", recommends, suggests)
	}
}

// An entry says what to do, and for whom.
func TestTableIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range table {
		if seen[n.What] || n.What == "" || len(n.For) == 0 || n.look == nil || len(n.Packages) == 0 && n.Remedy == "" {
			t.Errorf("%q is there twice, or is not whole", n.What)
		}
		seen[n.What] = true
		verbs := map[string]bool{}
		for _, u := range n.For {
			if verbs[u.Verb] {
				t.Errorf("%q names %s twice", n.What, u.Verb)
			}
			verbs[u.Verb] = true
		}
	}
	if !slices.ContainsFunc(table, func(n Need) bool { return n.What == x86 }) {
		t.Error("Relations wants an entry for the processor")
	}
}
