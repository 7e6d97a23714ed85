package build

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark/image/lock"
)

// furtherComponents are what Debian's archives have beside main. Nothing is taken from one of them but for definitions that name
// it (mkosi(1), Repositories=).
var furtherComponents = []string{"contrib", "non-free", "non-free-firmware"}

// ArchiveKeyring holds the keys that sign Debian's indexes; package debian-archive-keyring brings it.
const ArchiveKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// aptSource is one archive and the suites that are taken from it.
type aptSource struct {
	archive, url string
	suites       []string
	keyring      string // holds the keys that sign its indexes
	local        bool   // a repository of our own, unsigned: what it offers is held by hash
}

// apt is an apt that knows nothing of the machine's packages: own state, own sources, nothing installed. The machine's proxy
// and login settings are the only part of its configuration that still counts.
type apt struct {
	dir     string
	sources []aptSource
	conf    string // apt.conf(5): which of the archives' components count
}

// newApt prepares a state folder in dir. Pins are preferences in the form of apt_preferences(5); there may be none.
func newApt(dir string, sources []aptSource, pins string) (apt, error) {
	a := apt{dir: dir, sources: sources}
	for _, d := range []string{"etc/apt/preferences.d", "etc/apt/apt.conf.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return a, err
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "etc/apt/preferences.d/pins"), []byte(pins), 0o644),
		os.WriteFile(filepath.Join(dir, "var/lib/dpkg/status"), nil, 0o644),
	); err != nil {
		return a, err
	}
	return a.with(nil)
}

// with returns an apt of the same state for which main and the given components count. The indexes of all are fetched at once
// (update), so that they are of one time.
func (a apt) with(components []string) (apt, error) {
	for _, c := range components {
		if !slices.Contains(furtherComponents, c) {
			return a, fmt.Errorf("choose packages: the definitions ask for Repositories=%s: beside main there is %s", c, strings.Join(furtherComponents, ", "))
		}
	}
	var list strings.Builder
	for _, s := range a.sources {
		trust, of := "Signed-By: "+s.keyring, append([]string{"main"}, components...)
		if s.local {
			trust, of = "Trusted: yes", of[:1]
		}
		fmt.Fprintf(&list, "Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\n%s\n\n", s.url, strings.Join(s.suites, " "), strings.Join(of, " "), trust)
	}
	name := strings.Join(append([]string{"main"}, components...), "+")
	folder := filepath.Join(a.dir, "etc/apt/sources", name)
	a.conf = filepath.Join(a.dir, name+".conf")
	return a, errors.Join(
		os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, "archives.sources"), []byte(list.String()), 0o644),
		os.WriteFile(a.conf, []byte(a.config(folder)), 0o644),
	)
}

func (a apt) config(sources string) string {
	return fmt.Sprintf(`Dir %q;
Dir::State::status %q;
Dir::Etc::sourceparts %q;
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
Acquire::Check-Valid-Until "false";
Acquire::Retries "3";
pkgCacheGen::ForceEssential ",";
`, a.dir, filepath.Join(a.dir, "var/lib/dpkg/status"), sources)
}

func (a apt) run(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+a.conf, "LC_ALL=C.UTF-8")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// update fetches the indexes of all components. apt refuses an index whose InRelease is not signed by a key of its source's
// keyring, or whose hash is not in it.
func (a apt) update(ctx context.Context) error {
	all, err := a.with(furtherComponents)
	if err != nil {
		return err
	}
	_, err = all.run(ctx, "apt-get", "update")
	return err
}

// listName is the name that apt gives to the index file of a suite: the URL without its scheme, slashes replaced.
func listName(base, suite string) string {
	_, rest, _ := strings.Cut(base, "://")
	return strings.ReplaceAll(strings.ReplaceAll(rest, "_", "%5f"), "/", "_") + "_dists_" + suite + "_InRelease"
}

// resolve returns the packages that installing the given ones into an empty system brings, all of what they depend on included.
func (a apt) resolve(ctx context.Context, set lock.Set, names []string) ([]lock.Package, error) {
	out, err := a.run(ctx, append([]string{"apt-get", "install", "--yes", "--print-uris", "--"}, names...)...)
	if err != nil {
		return nil, fmt.Errorf("choose packages of set %s: %w", set, err)
	}
	return a.parse(set, out)
}

// only returns the packages themselves without what they depend on.
func (a apt) only(ctx context.Context, set lock.Set, names ...string) ([]lock.Package, error) {
	out, err := a.run(ctx, append([]string{"apt-get", "download", "--print-uris", "--"}, names...)...)
	if err != nil {
		return nil, fmt.Errorf("choose packages of set %s: %w", set, err)
	}
	return a.parse(set, out)
}

// parse reads lines "'URL' name_version_arch.deb size SHA256:hex" as apt-get(8) prints them; other lines are talk.
func (a apt) parse(set lock.Set, out []byte) ([]lock.Package, error) {
	var all []lock.Package
	in := bufio.NewScanner(bytes.NewReader(out))
	for in.Scan() {
		if !strings.HasPrefix(in.Text(), "'") {
			continue
		}
		p, err := a.parseURI(strings.Fields(in.Text()))
		if err != nil {
			return nil, fmt.Errorf("read apt's answer %q: %w", in.Text(), err)
		}
		p.Set = set
		all = append(all, p)
	}
	return all, in.Err()
}

func (a apt) parseURI(f []string) (p lock.Package, err error) {
	if len(f) != 4 || !strings.HasPrefix(f[3], "SHA256:") {
		return p, errors.New("not four fields with a SHA-256: apt is too old")
	}
	file, err := url.PathUnescape(strings.TrimSuffix(f[1], ".deb"))
	if err != nil {
		return p, err
	}
	parts := strings.Split(file, "_")
	if len(parts) != 3 {
		return p, errors.New("file name is not name_version_arch.deb")
	}
	p.Name, p.Version, p.Arch, p.SHA256 = parts[0], parts[1], parts[2], strings.TrimPrefix(f[3], "SHA256:")
	if p.Size, err = strconv.ParseInt(f[2], 10, 64); err != nil {
		return p, err
	}
	where, err := url.PathUnescape(strings.Trim(f[0], "'"))
	if err != nil {
		return p, err
	}
	for _, s := range a.sources {
		if rest, ok := strings.CutPrefix(where, s.url+"/"); ok {
			p.Path = s.archive + "/" + rest
		}
	}
	return p, nil
}
