package measurements

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// Limits of a policy's pools. The whole policy has to fit into an object of the API, which bounds them together.
const (
	maxPools = 64
	maxJoin  = 64 << 10
	// MaxFiles and MaxHooks are how many files and hooks one node may be given.
	MaxFiles = 32
	MaxHooks = 16
	// maxContent bounds a file, in bytes.
	maxContent = 128 << 10
)

// Pool is what a set of like nodes is given. It is public: secrets in its files are hullmark.EncryptedText, which join services open.
type Pool struct {
	// Name is a DNS label.
	Name string `json:"name"`
	// Join is a JoinConfiguration (kubeadm.k8s.io/v1beta4) in YAML, without what one node alone has; empty means Hullmark's own.
	Join string `json:"join,omitempty"`
	// Files are placed on the nodes' state disks at each boot.
	Files []PlacedFile `json:"files,omitempty"`
	// Hooks are services of the image. They are started at each boot, in this order, before kubeadm and the kubelet.
	Hooks []string `json:"hooks,omitempty"`
}

// PlacedFile is a file on a node's state disk.
type PlacedFile struct {
	// Path is absolute and clean.
	Path string `json:"path"`
	// Mode is four octal digits of permissions.
	Mode string `json:"mode"`
	// Content is the whole file.
	Content string `json:"content"`
}

// roots are the folders below which a node places files.
var roots = []string{"/etc/kubernetes/", "/var/lib/hullmark/"}

var (
	modePattern = regexp.MustCompile(`^0[0-7]{3}$`)
	// filePattern keeps out what a shell, a unit file or a terminal could read as something else.
	filePattern = regexp.MustCompile(`^[A-Za-z0-9/_.-]{1,200}$`)
)

// Pool returns the pool that a member belongs to; without one it is the zero value.
func (p Policy) Pool(m Member) Pool {
	if i := slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == m.Pool }); i >= 0 && m.Pool != "" {
		return p.Pools[i]
	}
	return Pool{}
}

func (p Policy) checkPools() error {
	if len(p.Pools) > maxPools {
		return fmt.Errorf("pools: %d, want at most %d", len(p.Pools), maxPools)
	}
	names := map[string]bool{"": true}
	for _, pool := range p.Pools {
		if names[pool.Name] || !hullmark.ValidNodeName(pool.Name) {
			return fmt.Errorf("pools: name %.80q: want a DNS label, each once", pool.Name)
		}
		names[pool.Name] = true
		if err := pool.check(); err != nil {
			return fmt.Errorf("pool %s: %w", pool.Name, err)
		}
	}
	for _, m := range p.Members {
		if !names[m.Pool] {
			return fmt.Errorf("members: %s: there is no pool %.80q", m.Name, m.Pool)
		}
	}
	return nil
}

func (p Pool) check() error {
	if len(p.Join) > maxJoin {
		return fmt.Errorf("join: %d bytes, want at most %d", len(p.Join), maxJoin)
	}
	if p.Join == "" && len(p.Files) == 0 && len(p.Hooks) == 0 {
		return errors.New("it gives its nodes nothing")
	}
	return CheckPlaced(p.Files, p.Hooks)
}

// CheckPlaced reports what keeps files and hooks from being given to one node: each would be refused there, or come in the
// place of what Hullmark or kubeadm writes.
func CheckPlaced(files []PlacedFile, hooks []string) error {
	if len(files) > MaxFiles || len(hooks) > MaxHooks {
		return fmt.Errorf("files: %d, hooks: %d: want at most %d and %d", len(files), len(hooks), MaxFiles, MaxHooks)
	}
	for i, f := range files {
		if err := f.check(); err != nil {
			return fmt.Errorf("files: %.200q: %w", f.Path, err)
		}
		if slices.ContainsFunc(files[:i], func(other PlacedFile) bool { return clash(other.Path, f.Path) }) {
			return fmt.Errorf("files: %s: there is another file in its place", f.Path)
		}
	}
	for i, h := range hooks {
		if !hullmark.ValidHook(h) {
			return fmt.Errorf("hooks: %.200q: want the name of a service in the image: lower-case letters, digits and hyphens, and .service, unless Hullmark starts it itself", h)
		}
		if slices.Contains(hooks[:i], h) {
			return fmt.Errorf("hooks: %s: named twice", h)
		}
	}
	return nil
}

func (f PlacedFile) check() error {
	inside := func(root string) bool { return len(f.Path) > len(root) && strings.HasPrefix(f.Path, root) }
	if !filePattern.MatchString(f.Path) || path.Clean(f.Path) != f.Path || !slices.ContainsFunc(roots, inside) {
		return fmt.Errorf("want a clean path below %s", strings.Join(roots, " or "))
	}
	if hullmark.Reserved(f.Path) {
		return errors.New("it is what Hullmark or kubeadm writes; choose another name")
	}
	if !modePattern.MatchString(f.Mode) {
		return fmt.Errorf("mode %q: want four octal digits such as \"0644\", quoted", f.Mode)
	}
	if len(f.Content) > maxContent {
		return fmt.Errorf("%d bytes, want at most %d", len(f.Content), maxContent)
	}
	if !hullmark.HasEncrypted(f.Content) {
		return nil
	}
	if f.Mode != "0600" && f.Mode != "0400" {
		return fmt.Errorf("mode %q: a file that holds a secret is its owner's alone: want \"0600\"", f.Mode)
	}
	_, _, err := hullmark.EncryptedIn(f.Content)
	return err
}

// clash reports whether two files cannot both exist.
func clash(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}
