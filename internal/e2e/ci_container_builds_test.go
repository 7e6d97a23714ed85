//go:build builds

package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/cache"
)

// container runs a command as a container's root: a file system of its own over this machine's, without what the machine's
// users have, but for the folder WORK, if there is one; its own processes and names; no rights but RIGHTS, if they are said.
const container = `
set -euo pipefail
mount -t tmpfs -o mode=0755 tmpfs "$ROOM"
# over NAME FOLDER PLACE shows a folder, whose changes stay in here.
over() {
    mkdir "$ROOM/$1" "$ROOM/$1-work"
    mkdir -p "$3"
    mount -t overlay -o lowerdir="$2",upperdir="$ROOM/$1",workdir="$ROOM/$1-work" overlay "$3"
}
over changed / "$ROOM/root"
cd "$ROOM/root"
for hidden in home root tmp var/tmp run mnt; do mkdir -p "$hidden"; mount -t tmpfs -o mode=1777 tmpfs "$hidden"; done
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
# What was fetched and compiled before is taken as it is; trees and what follows from them are made anew, and those of the
# machine, which another test may be making now, are not even seen.
for kept in sha256 tools go-build; do
    [ ! -d "$CACHE/$kept" ] || over "cache-$kept" "$CACHE/$kept" "home/cache/$kept"
done
over objects "$OBJECTS" home/objects
mkdir -p home/cache/tools
find home/cache home/objects -maxdepth 3 -type d -exec chmod 777 {} +
find home/cache/tools -type d ! -perm -o=rx -exec chmod o+rx {} +
find home/cache -maxdepth 2 -name '.*.lock' -exec chmod 666 {} +
mkdir mnt/modules
mount --bind -o ro "$MODULES" mnt/modules
if [ -n "${WORK:-}" ]; then
    mkdir home/work
    mount --bind "$WORK" home/work
fi
git clone -q "$CHECKOUT" home/source
mkdir .old
pivot_root . .old # under a mere chroot the kernel lets nobody make a user namespace
umount -l .old
rights=()
[ -z "${RIGHTS:-}" ] || rights=(--bounding-set "$RIGHTS")
exec setpriv --inh-caps -all "${rights[@]}" env --chdir /home/source bash -euo pipefail -c "$COMMAND"
`

// dockerRights are those that Docker leaves to root of a container.
const dockerRights = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+sys_chroot,+mknod,+audit_write,+setfcap"

// fetched are the settings by which Go and hullmark find in a container what this machine has fetched and compiled.
func fetched() map[string]string {
	return map[string]string{
		"PATH": os.Getenv("PATH"), "GOCACHE": "/home/objects",
		"GOPROXY": "file:///mnt/modules/cache/download", "GOFLAGS": "-modcacherw", "GONOSUMDB": "*",
	}
}

// contained runs a command, with settings beside those of fetched, in a container over this checkout, and returns what it said.
func contained(t *testing.T, command string, settings map[string]string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("it takes root to make a container here: sudo go test -tags builds -run %s ./internal/e2e", t.Name())
	}
	store, err := cache.Open()
	if err != nil {
		t.Fatal(err)
	}
	folders, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules, objects, _ := strings.Cut(strings.TrimSpace(string(folders)), "\n")
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := fetched()
	maps.Copy(all, map[string]string{
		"ROOM": t.TempDir(), "COMMAND": command, "CHECKOUT": checkout, "CACHE": store.Root, "MODULES": modules, "OBJECTS": objects,
	})
	maps.Copy(all, settings)
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "bash", "-c", container)
	for name, value := range all {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return string(said)
}

// releaseKey makes a key that signs releases: what is secret of it, and both halves in PEM.
func releaseKey(t *testing.T) (seed []byte, private, public string) {
	t.Helper()
	seed = random(t, ed25519.SeedSize)
	key := ed25519.NewKeyFromSeed(seed)
	of, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return seed, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: of})), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: whole}))
}

func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}
