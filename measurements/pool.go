package measurements

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/hullmark/hullmark"
)

// Limits of a policy's pools. What a node is given has to fit into one message.
const (
	maxPools = 64
	maxJoin  = 64 << 10
	maxFiles = 32
	maxHooks = 16
	// maxContent bounds a file, in bytes.
	maxContent = 128 << 10
)

// Pool is what a group of like nodes is given. It is public.
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

var (
	placedPattern = regexp.MustCompile(`^/(etc/kubernetes|var/lib/hullmark)(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`)
	modePattern   = regexp.MustCompile(`^0[0-7]{3}$`)
	hookPattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}\.service$`)
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
	if len(p.Join) > maxJoin || len(p.Files) > maxFiles || len(p.Hooks) > maxHooks {
		return fmt.Errorf("join: %d bytes, files: %d, hooks: %d: want at most %d, %d and %d", len(p.Join), len(p.Files), len(p.Hooks), maxJoin, maxFiles, maxHooks)
	}
	for i, f := range p.Files {
		switch {
		case !placedPattern.MatchString(f.Path) || slices.ContainsFunc(p.Files[:i], func(other PlacedFile) bool { return other.Path == f.Path }):
			return fmt.Errorf("files: %.200q: want a clean path below /etc/kubernetes/ or /var/lib/hullmark/, each once", f.Path)
		case !modePattern.MatchString(f.Mode):
			return fmt.Errorf("files: %s: mode %.20q: want four octal digits such as 0644", f.Path, f.Mode)
		case len(f.Content) > maxContent:
			return fmt.Errorf("files: %s: %d bytes, want at most %d", f.Path, len(f.Content), maxContent)
		}
	}
	for _, h := range p.Hooks {
		if !hookPattern.MatchString(h) {
			return fmt.Errorf("hooks: %.80q: want the name of a service: lower-case letters, digits and hyphens, and .service", h)
		}
	}
	if p.Join == "" && len(p.Files) == 0 && len(p.Hooks) == 0 {
		return errors.New("it gives its nodes nothing")
	}
	return nil
}
