package needs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// program looks for a program in PATH, or at its absolute path.
func program(name string) look {
	return func(_ context.Context, m Machine) (string, error) {
		if filepath.IsAbs(name) {
			return exec.LookPath(m.path(name))
		}
		return exec.LookPath(name)
	}
}

// file looks for a file.
func file(name string) look {
	return func(_ context.Context, m Machine) (string, error) {
		_, err := os.Stat(m.path(name))
		return m.path(name), err
	}
}

// unlessRoot looks for what ordinary users need, and root does not.
func unlessRoot(look look) look {
	return func(ctx context.Context, m Machine) (string, error) {
		if m.User == 0 {
			return "root needs none", nil
		}
		return look(ctx, m)
	}
}

// succeeds looks whether a trial ends well.
func succeeds(trial func(context.Context) error) look {
	return func(ctx context.Context, _ Machine) (string, error) { return "", trial(ctx) }
}

// processor looks whether the machine's processor is of the kind that images are for.
func processor(_ context.Context, m Machine) (string, error) {
	if m.Arch != "amd64" {
		return "", fmt.Errorf("this is a machine of %s", m.Arch)
	}
	return "", nil
}

// oldestGo is the first release of Go that fetches the one that a lock names.
const oldestGo = "go1.21"

// goTool asks Go for its release. Its settings are left out, and so is its habit of counting what it is asked for.
func goTool(ctx context.Context, m Machine) (string, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, "version")
	cmd.Dir = m.path("/")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOENV=off", "XDG_CONFIG_HOME="+os.DevNull)
	said, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", path, err)
	}
	words := strings.Fields(string(said))
	if len(words) < 3 || !version.IsValid(words[2]) {
		return "", fmt.Errorf("%s version: it says %.100q", path, said)
	}
	if version.Compare(words[2], oldestGo) < 0 {
		return "", fmt.Errorf("%s is %s: the first that fetches a locked release is %s", path, words[2], oldestGo)
	}
	return path + ", " + words[2], nil
}

// moduleProxy looks whether Go may fetch modules: by the environment, or by the file that go env -w writes. The value is not repeated,
// because a proxy's URL may hold a password.
func moduleProxy(context.Context, Machine) (string, error) {
	value := os.Getenv("GOPROXY")
	if value == "" {
		value = goSetting("GOPROXY")
	}
	switch value {
	case "off":
		return "", errors.New("GOPROXY is off: modules that are not in GOMODCACHE cannot be had")
	case "":
		return "Go's own", nil
	}
	return "as GOPROXY says", nil
}

// goSetting reads a setting of the file that go env -w writes; empty without one.
func goSetting(name string) string {
	settings := os.Getenv("GOENV")
	if settings == "" {
		folder, err := os.UserConfigDir()
		if err != nil {
			return ""
		}
		settings = filepath.Join(folder, "go", "env")
	}
	text, err := os.ReadFile(settings)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return value
		}
	}
	return ""
}

// git looks for git, which is asked for a checkout's commit where the checkout has one.
func git(_ context.Context, m Machine) (string, error) {
	path, err := exec.LookPath("git")
	if err == nil {
		return path, nil
	}
	if _, there := os.Lstat(filepath.Join(m.Work, ".git")); there != nil {
		return "not here; this folder is no repository, and asks for none", nil
	}
	return "", err
}

// mirror looks whether the machine's APT knows Debian's archive.
func mirror(_ context.Context, m Machine) (string, error) {
	return m.path("/etc/apt"), build.CheckMirrors(m.path("/etc/apt"))
}

// roomToBuild is what a first build fetches and makes, in bytes; reproduce builds three times.
const roomToBuild = 7_000_000_000

// builtBefore looks for room in the cache, unless something was built there: what the next build needs is less, and nobody knows how much.
func builtBefore(ctx context.Context, m Machine) (string, error) {
	note, err := room(func(m Machine) string { return m.Cache }, roomToBuild)(ctx, m)
	if _, before := os.Stat(filepath.Join(m.Cache, "tools")); before == nil && err != nil {
		return err.Error() + ", and something was built here before, which is not fetched again", nil
	}
	return note, err
}

// room looks for free room where a folder is, or will be.
func room(folder func(Machine) string, want uint64) look {
	return func(_ context.Context, m Machine) (string, error) {
		dir := folder(m)
		var s unix.Statfs_t
		err := unix.Statfs(dir, &s)
		for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			err = unix.Statfs(dir, &s)
		}
		if err != nil {
			return "", fmt.Errorf("ask for free room in %s: %v", dir, err)
		}
		free := s.Bavail * uint64(s.Bsize)
		note := fmt.Sprintf("%.1f GB are free in %s", float64(free)/1e9, dir)
		if free < want {
			return "", fmt.Errorf("%s, of %.0f GB", note, float64(want)/1e9)
		}
		return note, nil
	}
}

// memory looks for available memory, in MiB.
func memory(want uint64) look {
	return func(_ context.Context, m Machine) (string, error) {
		text, err := os.ReadFile(m.path("/proc/meminfo"))
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "MemAvailable:" {
				continue
			}
			kib, err := strconv.ParseUint(words[1], 10, 64)
			if err != nil {
				return "", fmt.Errorf("/proc/meminfo: %w", err)
			}
			note := fmt.Sprintf("%d MiB are available", kib>>10)
			if kib>>10 < want {
				return "", fmt.Errorf("%s, of %d", note, want)
			}
			return note, nil
		}
		return "", errors.New("/proc/meminfo says nothing of it")
	}
}

// setting looks whether a number of the kernel's settings is between two; a kernel without the setting sets no limit.
func setting(name string, least, most int) look {
	return func(_ context.Context, m Machine) (string, error) {
		path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
		text, err := os.ReadFile(m.path(path))
		if errors.Is(err, fs.ErrNotExist) {
			return "this kernel has no such limit", nil
		}
		if err != nil {
			return "", err
		}
		value, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		if value < least || value > most {
			return "", fmt.Errorf("it is %d", value)
		}
		return strconv.Itoa(value), nil
	}
}

// noMost is a setting that may be as high as it likes.
const noMost = int(^uint(0) >> 1)

// kvm opens the device, as hullmark vm does before it tries it.
func kvm(_ context.Context, m Machine) (string, error) {
	device, err := os.OpenFile(m.path("/dev/kvm"), os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	return "hullmark vm tries whether it works", device.Close()
}

// firmware looks for the firmware that hullmark vm would find.
func firmware(secure bool) look {
	return func(_ context.Context, m Machine) (string, error) {
		h := machine.Hardware{SecureBoot: secure}
		if secure {
			h.Firmware.Vars = "one's own"
		}
		files, err := h.Files(func(name string) bool {
			_, err := os.Stat(m.path(name))
			return err == nil
		})
		if err != nil {
			return "", fmt.Errorf("%w: %w", err, fs.ErrNotExist)
		}
		return files.Code, nil
	}
}

// certificates looks for the authorities that servers' certificates are held to, where Go looks for them on Debian.
func certificates(ctx context.Context, m Machine) (string, error) {
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if os.Getenv(name) != "" {
			return "as " + name + " says", nil
		}
	}
	return file("/etc/ssl/certs/ca-certificates.crt")(ctx, m)
}

// dockerConfig is what Docker's configuration says of programs that keep logins.
type dockerConfig struct {
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// logins looks for the programs that Docker's configuration has registries' logins asked of.
func logins(context.Context, Machine) (string, error) {
	folder := os.Getenv("DOCKER_CONFIG")
	if folder == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "there are none: no home folder", nil
		}
		folder = filepath.Join(home, ".docker")
	}
	path := filepath.Join(folder, "config.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "there are none", nil
	}
	if err != nil {
		return "", err
	}
	var config dockerConfig
	if err := json.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	helpers := slices.Sorted(maps.Values(config.CredHelpers))
	if config.CredsStore != "" {
		helpers = append(helpers, config.CredsStore)
	}
	for _, helper := range helpers {
		if _, err := exec.LookPath("docker-credential-" + helper); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}
	return path, nil
}

// beside looks for what hullmark build leaves in its folder.
func beside(name string) look {
	return func(_ context.Context, m Machine) (string, error) {
		path := filepath.Join(m.Work, "out", name)
		_, err := os.Stat(path)
		return path, err
	}
}
