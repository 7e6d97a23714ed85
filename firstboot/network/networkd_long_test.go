//go:build long

package network

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/buildtest"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// The systemd-networkd of the release that the image has reads every setting that is ever written, without a word. It says one of a
// setting that it does not know.
func TestNetworkdReadsFiles(t *testing.T) {
	every := `"interfaces":[
		{"name":"a","card":{"name":"enp1s0"}},{"name":"b","card":{"name":"enp2s0"}},
		{"name":"lag","bond":{"mode":"802.3ad","members":["a","b"],"hash":"layer2+3","lacpRate":"slow"},"mtu":9000},
		{"name":"v","vlan":{"id":4094,"link":"lag"}},
		{"name":"br","bridge":{"members":["v"]},"node":true,"addresses":["192.0.2.21/24"],"routes":[{"to":"198.51.100.0/24","metric":7}],"searchDomains":["example.net"],
		 "dhcp4":{"use":["dns","domains","mtu","ntp","routes"],"metric":5,"clientID":"duid","vendorClass":"hullmark"},
		 "dhcp6":{"use":["dns","domains","ntp"],"vendorClass":"hullmark"},"ra":{"use":["dns","domains","mtu","routes"],"metric":6}}]`
	tools, written := buildtest.Tools(t), ""
	for name, fields := range map[string]string{
		"bonded": bonded, "every option": every,
		"without interfaces": `"addresses":["192.0.2.21/24"],"gateway":"192.0.2.1","nameServers":["192.0.2.3"]`,
	} {
		links := cards
		if name == "without interfaces" {
			links = cards[:1]
		}
		p, err := Make(parse(t, fields), links)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range p.Files() {
			written += f.Content
		}
		if said := networkd(t, tools, p.Files()); said != "" {
			t.Errorf("%s: networkd says\n%s", name, said)
		}
	}
	for _, setting := range known {
		if !strings.HasPrefix(setting, "NTP") && !strings.HasSuffix(setting, "_PROXY") && !strings.Contains(written, "\n"+setting+"=") {
			t.Errorf("networkd was not shown %s", setting)
		}
	}
	if said := networkd(t, tools, []File{{"10-x.network", "[Match]\nName=enp1s0\n\n[Network]\nAddresses=192.0.2.21/24\n"}}); !strings.Contains(said, "Addresses") {
		t.Errorf("of a setting that is none networkd says %q", said)
	}
}

// networkd starts systemd-networkd in a network of its own, and returns what it says of files until it is ready.
func networkd(t *testing.T, tools string, files []File) string {
	t.Helper()
	dir := t.TempDir()
	for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) { // It gives up being root.
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range append(files, File{"99-image.network", image(t)}) {
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "notify")
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	// The tools tree has not the user that the image has.
	users, groups := file(t, "passwd", "root:x:0:0::/:\nsystemd-network:x:998:998::/:\n"), file(t, "group", "root:x:0:\nsystemd-network:x:998:\n")
	sandbox := toolstree.Sandbox{
		Tree: tools, Offline: true,
		Binds: []toolstree.Bind{
			{Host: "/sys"},
			{Host: dir, Tree: "/run/systemd/network"},
			{Host: socket, Tree: "/notify"},
			{Host: users, Tree: "/etc/passwd"},
			{Host: groups, Tree: "/etc/group"},
		},
		Env: map[string]string{"NOTIFY_SOCKET": "/notify", "SYSTEMD_LOG_TARGET": "console", "SYSTEMD_LOG_LEVEL": "notice"},
	}
	// A service has a folder of its user for what it keeps.
	cmd := sandbox.Command(t.Context(), "/bin/sh", "-c", "chmod 755 /run /run/systemd; mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp; chown -R systemd-network:systemd-network /run/systemd/netif 2>/dev/null; exec /usr/lib/systemd/systemd-networkd")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	err = ready.SetReadDeadline(time.Now().Add(20 * time.Second))
	for n := 0; err == nil && !strings.Contains(string(message[:n]), "READY=1"); {
		n, err = ready.Read(message)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("networkd was not ready: %v\n%s", err, said.String())
	}
	var complaints []string
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "/run/systemd/network/") {
			complaints = append(complaints, line)
		}
	}
	return strings.Join(complaints, "")
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// image is the image's own file.
func image(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../systemd/network/" + imageFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
