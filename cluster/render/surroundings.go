package render

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/measurements"
)

// Limits of what nodes find around them.
const (
	maxRegistries  = 16
	maxMirrors     = 4
	maxTimeServers = 16
)

// Surroundings are what nodes find around them: where images come from, where the journal goes, and who tells the time. It reaches a
// node in the signed policy, as files in hullmark.PoolFolder.
type Surroundings struct {
	// Registries are asked in another way than images' names say.
	Registries []Registry `json:"registries,omitempty"`
	// Journal has the nodes' journals forwarded.
	Journal *Journal `json:"journal,omitempty"`
	// TimeServers are NTP servers by name or address.
	TimeServers []string `json:"timeServers,omitempty"`
}

// Registry is how the images of one registry are got.
type Registry struct {
	// Host is what images' names begin with, as registry.example:5000 or docker.io; * is every registry that has no entry.
	Host string `json:"host"`
	// Mirrors are asked in this order.
	Mirrors []Mirror `json:"mirrors"`
	// Upstream says that the registry itself is asked after them.
	Upstream bool `json:"upstream,omitempty"`
}

// Mirror is one place at which a registry's images are, the registry itself perhaps.
type Mirror struct {
	// URL is https://HOST[:PORT], or with a path the root of its API, as https://HOST/v2/PROJECT.
	URL string `json:"url"`
	// CA has certificates, in PEM, of authorities that the mirror's certificate may come from, beside those that the image trusts.
	CA string `json:"ca,omitempty"`
	// Credentials are user and password for this URL, as hullmark cluster encrypt prints them.
	Credentials string `json:"credentials,omitempty"`
}

// Journal is who is sent the nodes' journals.
type Journal struct {
	// Collector is HOST:PORT of a receiver of syslog over TLS (RFC 5425).
	Collector string `json:"collector"`
	// Name is what its certificate is for; empty means the collector's host.
	Name string `json:"name,omitempty"`
	// CA has certificates, in PEM, of authorities that its certificate has to come from. No other is trusted.
	CA string `json:"ca"`
	// Certificate, in PEM, is what nodes show the collector, and Key its private key, as hullmark cluster encrypt prints it for
	// hullmark.CollectorKey.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
}

// around is what a pool's nodes find: each part the pool's own, or else the cluster's.
func (c *Cluster) around(p Pool) Surroundings {
	s := p.Surroundings
	if s.Registries == nil {
		s.Registries = c.Registries
	}
	if s.TimeServers == nil {
		s.TimeServers = c.TimeServers
	}
	s.Journal = cmp.Or(s.Journal, c.Journal)
	return s
}

// filesOf are all files that a pool's nodes are given.
func (c *Cluster) filesOf(p Pool) ([]measurements.PlacedFile, error) {
	for _, f := range slices.Concat(c.Files, p.Files) {
		if strings.HasPrefix(f.Path, hullmark.PoolFolder) {
			return nil, fmt.Errorf("files: %s: what is below %s comes from registries, journal and timeServers", f.Path, hullmark.PoolFolder)
		}
		if err := checkPurpose(f.Content, f.Path); err != nil {
			return nil, fmt.Errorf("files: %s: %w", f.Path, err)
		}
	}
	files, err := c.around(p).Files()
	return append(placed(c.Files, p.Files), files...), err
}

// checkPurpose wants that what is encrypted in a text was encrypted for this place: nobody has it shown elsewhere by editing a document.
func checkPurpose(text, purpose string) error {
	found, _, err := hullmark.EncryptedIn(text)
	for _, e := range found {
		if e.Purpose != purpose {
			return fmt.Errorf("its secret was encrypted for %s; encrypt it for this place (hullmark cluster encrypt %s)", e.Purpose, purpose)
		}
	}
	return err
}

// Files are what it is on a node.
func (s Surroundings) Files() (files []measurements.PlacedFile, err error) {
	if len(s.Registries) > maxRegistries {
		return nil, fmt.Errorf("registries: %d, want at most %d", len(s.Registries), maxRegistries)
	}
	for i, r := range s.Registries {
		if slices.ContainsFunc(s.Registries[:i], func(other Registry) bool { return other.Host == r.Host }) {
			return nil, fmt.Errorf("registries[%d]: %s: named twice", i, r.Host)
		}
		more, err := r.files()
		if err != nil {
			return nil, fmt.Errorf("registries[%d] (%.80s): %w", i, r.Host, err)
		}
		files = append(files, more...)
	}
	if s.Journal != nil {
		more, err := s.Journal.files()
		if err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		files = append(files, more...)
	}
	if len(s.TimeServers) > maxTimeServers {
		return nil, fmt.Errorf("timeServers: %d, want at most %d", len(s.TimeServers), maxTimeServers)
	}
	if len(s.TimeServers) > 0 {
		files = append(files, measurements.PlacedFile{Path: hullmark.TimeFile, Mode: "0644", Content: hullmark.TimeSettings(s.TimeServers)})
	}
	return files, nil
}

var (
	registryPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?(:[1-9][0-9]{0,4})?$`)
	pathPattern     = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+)*$`)
)

// dockerHub is the host of what images' names call docker.io.
const dockerHub = "registry-1.docker.io"

// files are hosts.toml, as containerd reads it for one registry (docs/hosts.md of containerd), and the authorities that it names.
// containerd takes a file that it cannot read for none, and asks the registry itself: so all that stands in it is of a few characters.
func (r Registry) files() (files []measurements.PlacedFile, err error) {
	folder, err := r.folder()
	if err != nil {
		return nil, err
	}
	if len(r.Mirrors) == 0 || len(r.Mirrors) > maxMirrors {
		return nil, fmt.Errorf("mirrors: want 1 to %d; the registry itself may be one", maxMirrors)
	}
	var tables strings.Builder
	hosts := measurements.PlacedFile{Path: folder + "hosts.toml", Mode: "0644"}
	last := ""
	for i, m := range r.Mirrors {
		if slices.ContainsFunc(r.Mirrors[:i], func(other Mirror) bool { return other.URL == m.URL }) {
			return nil, fmt.Errorf("mirrors[%d]: %s: named twice", i, m.URL)
		}
		if err := m.check(); err != nil {
			return nil, fmt.Errorf("mirrors[%d] (%.200s): %w", i, m.URL, err)
		}
		if m.CA != "" {
			files = append(files, measurements.PlacedFile{Path: m.authority(folder, i), Mode: "0644", Content: m.CA})
		}
		if m.Credentials != "" {
			hosts.Mode = "0600"
		}
		settings := m.settings(folder, i)
		fmt.Fprintf(&tables, "\n[host.%q]\n%s", m.URL, settings.String())
		if settings.authorization != "" {
			fmt.Fprintf(&tables, "[host.%q.header]\n%s", m.URL, settings.authorization)
		}
		last = fmt.Sprintf("server = %q\n%s", m.URL, settings.String())
		if settings.authorization != "" {
			last += "[header]\n" + settings.authorization
		}
	}
	switch {
	case !r.Upstream: // containerd asks a server after all others in any case: the last mirror once more.
		hosts.Content = last
	case r.Host == "*":
	case r.Host == "docker.io":
		hosts.Content = fmt.Sprintf("server = %q\n", "https://"+dockerHub)
	default:
		hosts.Content = fmt.Sprintf("server = %q\n", "https://"+r.Host)
	}
	hosts.Content += tables.String()
	return append(files, hosts), nil
}

// folder is where containerd looks for a registry's settings: a colon becomes _, and one follows the port.
func (r Registry) folder() (string, error) {
	name := r.Host
	switch {
	case name == "*":
		name = "_default"
	case !registryPattern.MatchString(name):
		return "", errors.New(`host: want what images' names begin with, such as registry.example:5000, or "*"`)
	case strings.Contains(name, ":"):
		name = strings.ReplaceAll(name, ":", "_") + "_"
	}
	return hullmark.RegistriesFolder + name + "/", nil
}

func (m Mirror) check() error {
	u, err := url.Parse(m.URL)
	if err != nil || u.Scheme != "https" || !registryPattern.MatchString(u.Host) || !pathPattern.MatchString(u.Path) || u.Scheme+"://"+u.Host+u.Path != m.URL {
		return errors.New("url: want https://HOST[:PORT], in lower case, or with the path of its API")
	}
	if m.CA != "" {
		if _, err := pemcert.Split([]byte(m.CA)); err != nil {
			return fmt.Errorf("ca: %w", err)
		}
	}
	if m.Credentials == "" {
		return nil
	}
	return checkSecret("credentials", m.Credentials, m.URL)
}

// checkSecret wants one encrypted text, for this purpose.
func checkSecret(field, text, purpose string) error {
	e, err := hullmark.ParseEncrypted(text)
	if err == nil && e.Purpose != purpose {
		err = checkPurpose(text, purpose)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

func (m Mirror) authority(folder string, i int) string {
	return fmt.Sprintf("%smirror-%d.crt", folder, i+1)
}

// mirrorSettings are what containerd is told of a mirror.
type mirrorSettings struct {
	lines         []string
	authorization string
}

func (s mirrorSettings) String() string { return strings.Join(s.lines, "\n") + "\n" }

func (m Mirror) settings(folder string, i int) mirrorSettings {
	s := mirrorSettings{lines: []string{`capabilities = ["pull", "resolve"]`}}
	if u, err := url.Parse(m.URL); err == nil && u.Path != "" {
		s.lines = append(s.lines, "override_path = true")
	}
	if m.CA != "" {
		s.lines = append(s.lines, fmt.Sprintf("ca = %q", m.authority(folder, i)))
	}
	if m.Credentials != "" {
		s.authorization = fmt.Sprintf("Authorization = %q\n", m.Credentials)
	}
	return s
}

// files are what the forwarder reads.
func (j Journal) files() ([]measurements.PlacedFile, error) {
	host, ok := hullmark.EndpointHost(j.Collector)
	if !ok {
		return nil, fmt.Errorf("collector: %q: want HOST:PORT", j.Collector)
	}
	name := cmp.Or(j.Name, host)
	if !hullmark.ValidServerName(name) || strings.Contains(name, "*") {
		return nil, fmt.Errorf("name: %q: want the DNS name, in lower case, or the address in the collector's certificate", name)
	}
	if _, err := pemcert.Split([]byte(j.CA)); err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	settings, err := json.Marshal(hullmark.Collector{Endpoint: j.Collector, Name: name})
	if err != nil {
		return nil, err
	}
	files := []measurements.PlacedFile{
		{Path: hullmark.CollectorFile, Mode: "0644", Content: string(settings) + "\n"},
		{Path: hullmark.CollectorCA, Mode: "0644", Content: j.CA},
	}
	if j.Certificate == "" && j.Key == "" {
		return files, nil
	}
	if _, err := pemcert.Split([]byte(j.Certificate)); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if err := checkSecret("key", j.Key, hullmark.CollectorKey); err != nil {
		return nil, err
	}
	return append(files,
		measurements.PlacedFile{Path: hullmark.CollectorCertificate, Mode: "0644", Content: j.Certificate},
		measurements.PlacedFile{Path: hullmark.CollectorKey, Mode: "0600", Content: j.Key}), nil
}
