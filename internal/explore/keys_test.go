//go:build explore

package explore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// A control plane, and its keys, which the operator exchanges.

// rotation is a policy with the keys that it commits to.
type rotation struct {
	policy *joinservice.PolicyStore
	files  []*wire.File
}

// holding is what a replica has: the policy, and the keys, of a rotation each.
type holding struct{ policy, keys int }

// holdings are what a replica has one after the other.
var holdings = []holding{{0, 0}, {1, 0}, {1, 1}}

// rotate makes two rotations of the cluster, and one of another cluster: nobody signed that for this one.
func (x *site) rotate(t *testing.T, members ...measurements.Member) {
	other, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	document, own := nodetest.Document(t, "image"), *x.cluster
	for _, c := range []*cluster.Cluster{&own, other} {
		var policy measurements.Policy
		for _, m := range members {
			if policy, err = joinservice.FirstPolicy(policy, document, m); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.SetPolicy(policy, document); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*cluster.Cluster{&own, &own, other} {
		if err := c.RotateOnlineCA(); err != nil {
			t.Fatal(err)
		}
		x.rotations = append(x.rotations, newRotation(t, c))
	}
}

func newRotation(t *testing.T, c *cluster.Cluster) rotation {
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	signed := joinservice.SignedPolicy{Envelope: c.Policy, Documents: c.Documents}
	store, warning, err := joinservice.OpenPolicyStore(c.ID(), signed, servicefiles.Plain(filepath.Join(t.TempDir(), "policy")))
	if err != nil || warning != nil {
		t.Fatal(err, warning)
	}
	return rotation{store, files}
}

// copies returns files that may be wiped.
func copies(files []*wire.File, wanted func(path string) bool) (all []*wire.File) {
	for _, f := range files {
		if wanted(f.GetPath()) {
			all = append(all, proto.Clone(f).(*wire.File))
		}
	}
	return all
}

// ofPolicy reports whether a file comes from the service's policy, not from its disk.
func ofPolicy(path string) bool {
	return path == hullmark.PolicyFile || strings.HasPrefix(path, hullmark.DocumentsFolder+"/")
}

// controlPlanes is how a replica that holds keys gives them on.
func (x *site) controlPlanes(r *run, keys int) joinservice.ControlPlanes {
	of := x.rotations[keys]
	policy := of.policy.Policy()
	return joinservice.ControlPlanes{
		Lease: records{r}, RemoveMember: func(context.Context, string, netip.Addr) error { return nil },
		Files: func() ([]*wire.File, error) {
			return copies(of.files, func(path string) bool {
				return (strings.HasPrefix(path, "/etc/kubernetes/pki/") || hullmark.Rotated(path)) && !ofPolicy(path)
			}), nil
		},
		Rotated: func() ([]*wire.File, error) {
			return copies(of.files, func(path string) bool { return hullmark.Rotated(path) && !ofPolicy(path) }), nil
		},
		Rotation: policy.Rotation, Keys: policy.Keys,
	}
}

func (k records) Acquire(ctx context.Context, node hullmark.EKID) (joinservice.Term, error) {
	return k.run.w.records.Acquire(ctx, node)
}

func (k records) Renew(ctx context.Context, t joinservice.Term) error {
	return k.run.w.records.Renew(ctx, t)
}

func (k records) Release(ctx context.Context, t joinservice.Term) error {
	return k.run.w.records.Release(ctx, t)
}

// exchanges are what the operator, and the other control planes, do: the newest keys come to a replica at once, or its policy before them.
func (r *run) exchanges() (all []choice) {
	if len(r.site.rotations) == 0 {
		return nil
	}
	for i, level := range r.w.levels {
		for next := level + 1; next < len(holdings); next++ {
			if i == 0 && next == 1 || i == 1 && r.w.levels[0] == 0 {
				continue // The operator brings the first replica both.
			}
			all = append(all, fault(&r.w.left.Rotate, fmt.Sprintf("replica %d gets %v", i, holdings[next]), func() {
				r.w.levels[i] = next
				r.restart(i)
			})...)
		}
	}
	return all
}

// forgeries are what a compromised join service brings in the place of what an honest one would.
var forgeries = []string{"!number", "!foreign", "!content", "!older"}

// forgeKeys changes the keys that Proceed brings.
func (r *run) forgeKeys(m *wire.Proceed, how string) {
	rotations := r.site.rotations
	newest, older, foreign := rotations[r.newestRotation()], rotations[0], rotations[2]
	from := map[string]rotation{"!number": newest, "!content": newest, "!older": older, "!foreign": foreign}[how]
	m.Files = slices.DeleteFunc(m.Files, func(f *wire.File) bool { return hullmark.Rotated(f.GetPath()) })
	files := copies(from.files, hullmark.Rotated)
	for _, f := range files {
		switch {
		case how == "!number" && f.GetPath() == hullmark.RotationFile:
			_, blind, _ := bytes.Cut(f.Content, []byte(" "))
			f.Content = append([]byte("18446744073709551615 "), blind...)
		case how == "!content" && strings.HasSuffix(f.GetPath(), "/keyset.json"):
			f.Content = []byte("{}")
		}
	}
	m.Files = append(m.Files, files...)
}

// newestRotation is the newest one that a replica knows.
func (r *run) newestRotation() int {
	return max(holdings[r.w.levels[0]].policy, holdings[r.w.levels[1]].policy)
}

// keptOf returns the files that a manifest keeps for programs, by the names that they see.
func keptOf(content string) map[string]string {
	files, b, be := map[string]string{}, []byte(content), binary.BigEndian
	if len(b) < 48 {
		return files
	}
	count := be.Uint32(b[44:])
	b = b[48:]
	for range count {
		named, size := int(be.Uint16(b)), int(be.Uint32(b[4:]))
		if rest, ok := strings.CutPrefix(string(b[8:8+named]), "files/"); ok {
			files["/var/lib/hullmark/"+rest] = string(b[8+named : 8+named+size])
		}
		b = b[8+named+size:]
	}
	return files
}

// none, mixed and unsigned are no rotation's keys.
const (
	noKeys    = -1
	mixedKeys = -2
)

// rotationOf says of which rotation all is that a manifest keeps of one.
func (x *site) rotationOf(content string) int {
	kept := keptOf(content)
	there := func(path string) bool { _, ok := kept[path]; return ok && hullmark.Rotated(path) }
	if !there(hullmark.RotationFile) && !there(hullmark.PolicyFile) {
		return noKeys
	}
	for i, of := range x.rotations[:2] {
		same := func(f *wire.File) bool {
			path := f.GetPath()
			return !hullmark.Rotated(path) || !strings.HasPrefix(path, "/var/lib/hullmark/") || kept[path] == string(f.GetContent())
		}
		if !slices.ContainsFunc(of.files, func(f *wire.File) bool { return !same(f) }) {
			return i
		}
	}
	return mixedKeys
}

// checkKeys looks at the keys that a disk's manifest comes to hold.
func (r *run) checkKeys(d *disk) {
	if len(r.site.rotations) == 0 {
		return
	}
	now := r.site.rotationOf(d.manifest)
	switch {
	case now == mixedKeys:
		r.violate("keys are on the disk that nobody signed")
	case now < d.keys && d.joined:
		r.violate("older keys are in the place of newer ones")
	}
	d.keys = now
}

// checkNewest looks whether a control plane that was brought the newest keys has them.
func (r *run) checkNewest(p *proc) {
	if len(r.site.rotations) == 0 || p.forged || p.transit == nil {
		return
	}
	if brought := holdings[p.level].keys; r.site.rotationOf(r.disk().files[statedisk.ManifestFile]) < brought {
		r.violate("a control plane does not take the newest keys")
	}
}
