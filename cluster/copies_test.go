package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// copyOf is another copy of a file, as it is by now.
func copyOf(t *testing.T, f *File) *File {
	t.Helper()
	content, err := os.ReadFile(f.store.(*onDisk).path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "copy.age")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path, secret("correct"))
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// raise signs a policy of the next version, which tells itself from others by what it demands.
func raise(t *testing.T, f *File, svn uint32) *File {
	t.Helper()
	if err := f.Update(func(c *Cluster) error {
		policy, err := c.OpenPolicy()
		if err != nil {
			return err
		}
		policy.Version++
		policy.MinimumSVN = svn
		return c.SetPolicy(policy)
	}); err != nil {
		t.Fatal(err)
	}
	return f
}

// Of two copies of a file the one that is behind is found by the policy that the cluster has.
func TestOlderCopyIsFound(t *testing.T) {
	start := newFile(t)
	blank := copyOf(t, start)
	if err := start.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 4}) }); err != nil {
		t.Fatal(err)
	}
	four := start.Cluster.Policy
	behind, forked, longer := copyOf(t, start), raise(t, copyOf(t, start), 50), copyOf(t, start)
	for range 3 {
		raise(t, longer, 70)
	}
	lower, revoking, exchanged, later := copyOf(t, start), copyOf(t, start), copyOf(t, start), copyOf(t, start)
	for range 3 {
		raise(t, lower, 0)
	}
	if err := revoking.Update(func(c *Cluster) error { return c.SetPolicy(measurements.Policy{Version: 5, OperatorsFrom: 5}) }); err != nil {
		t.Fatal(err)
	}
	trusting := copyOf(t, start)
	if err := trusting.Update(func(c *Cluster) error { return c.TrustCA(KubernetesCA) }); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*File{exchanged, later, later} {
		if err := f.Update((*Cluster).RotateOnlineCA); err != nil {
			t.Fatal(err)
		}
	}
	newest := raise(t, start, 1)
	five, noted := newest.Cluster.Policy, newest.Cluster.Revision.String()
	rotated := copyOf(t, newest)
	if err := rotated.Update((*Cluster).RotateRoot); err != nil {
		t.Fatal(err)
	}
	goesOn := copyOf(t, later) // As policy show and policy sign have it, with any kubernetesCA.
	if err := goesOn.Update(func(c *Cluster) error {
		return c.SetPolicy(measurements.Policy{Version: 7, Rotation: 2, KubernetesCA: hullmark.CADigest{1}})
	}); err != nil {
		t.Fatal(err)
	}
	if p, err := goesOn.Cluster.OpenPolicy(); err != nil || p.KubernetesCA != hullmark.DigestCA(goesOn.Cluster.KubernetesCA()) {
		t.Errorf("its policy commits to the Kubernetes CA %s, %v", p.KubernetesCA, err)
	}
	earlier := *newest.Cluster // As a commit wrote it that noted nothing.
	earlier.signed, earlier.Revision = nil, Revision{}
	long := copyOf(t, newest)
	for range maxStamps + 5 {
		raise(t, long, 1)
	}
	stranger := raise(t, newFile(t), 1)
	lender := newFile(t)
	borrowed := mustLend(t, lender, firstMachine, false)
	raise(t, lender, 1)
	const passes = ""
	for name, c := range map[string]struct {
		file    *Cluster
		inForce []byte
		noted   string
		lost    bool
		says    string
	}{
		"the newest":                              {newest.Cluster, five, noted, false, passes},
		"the newest, before it is pushed":         {newest.Cluster, four, "", false, passes},
		"the newest, said to be lost":             {newest.Cluster, five, noted, true, passes},
		"an older copy":                           {behind.Cluster, five, noted, false, "policy version 5, brought by revision 2 of "},
		"an older copy names itself":              {behind.Cluster, five, noted, false, "this copy, revision 1 of "},
		"an older copy, without a note":           {behind.Cluster, five, "", false, "the cluster has policy version 5, and this copy"},
		"an older copy, by a note of nonsense":    {behind.Cluster, five, "revision 7 of \x1b[2J", false, "the cluster has policy version 5, and this copy"},
		"a copy from before the first policy":     {blank.Cluster, five, noted, false, "has version 0"},
		"another policy of the version":           {forked.Cluster, five, noted, false, "did not sign"},
		"a higher version, by another way":        {longer.Cluster, five, noted, false, "did not sign"},
		"the newest is lost":                      {longer.Cluster, five, noted, true, passes},
		"the newest is lost, and not less":        {forked.Cluster, five, noted, true, "give the policy of this copy a higher one"},
		"the newest is lost, and more":            {behind.Cluster, five, noted, true, "give the policy of this copy a higher one"},
		"the newest is lost, with its releases":   {lower.Cluster, five, noted, true, "give the policy of this copy minimumSVN 1 or more"},
		"the newest is lost, with its operators":  {longer.Cluster, revoking.Cluster.Policy, noted, true, "give the policy of this copy operatorsFrom 5 or more"},
		"the newest is lost, with its keys":       {longer.Cluster, exchanged.Cluster.Policy, noted, true, "give the policy of this copy rotation 2 or more"},
		"the newest is lost, with its trust":      {later.Cluster, trusting.Cluster.Policy, noted, true, "give the policy of this copy any kubernetesCA"},
		"the newest is lost, and its trust is in": {goesOn.Cluster, trusting.Cluster.Policy, noted, true, passes},
		"the newest is lost, and keys are newer":  {later.Cluster, exchanged.Cluster.Policy, noted, true, passes},
		"a root that was exchanged since":         {newest.Cluster, rotated.Cluster.Policy, noted, false, "a copy from before it was exchanged"},
		"an exchanged root, said to be lost":      {newest.Cluster, rotated.Cluster.Policy, noted, true, "a copy from before it was exchanged"},
		"an exchange that is to be pushed":        {rotated.Cluster, five, noted, false, passes},
		"an exchange of another copy":             {rotated.Cluster, forked.Cluster.Policy, noted, false, "did not sign"},
		"a file that noted nothing":               {&earlier, five, "", false, passes},
		"a file that noted nothing, not pushed":   {&earlier, four, "", false, passes},
		"a file that noted nothing, another way":  {&earlier, forked.Cluster.Policy, "", false, "did not sign"},
		"what it signed very long ago":            {long.Cluster, four, "", false, passes},
		"a file that was lent before":             {borrowed.Cluster, lender.Cluster.Policy, "", false, passes},
		"nobody's policy":                         {behind.Cluster, []byte("{}"), noted, false, passes},
		"no policy at all":                        {behind.Cluster, []byte("\x00"), noted, false, passes},
		"another cluster's policy":                {behind.Cluster, stranger.Cluster.Policy, noted, false, passes},
	} {
		err := c.file.CheckCopy(c.inForce, c.noted, c.lost)
		if c.says == passes {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, ErrOlderCopy) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.says)
		}
	}
}

// An older copy of the file does not make somebody an operator again who was withdrawn since, nor does a copy that began from before that.
func TestOlderCopyNamesNobodyWhoWasWithdrawn(t *testing.T) {
	alice := hullmark.Operator{Name: "alice", Key: hullmark.OperatorKey{1}, May: []hullmark.Permission{hullmark.MayLook}}
	sign := func(f *File, version uint64, operators ...hullmark.Operator) []byte {
		t.Helper()
		if err := f.Update(func(c *Cluster) error {
			return c.SetPolicy(measurements.Policy{Version: version, Operators: operators})
		}); err != nil {
			t.Fatal(err)
		}
		return f.Cluster.Policy
	}
	newest := newFile(t)
	named := sign(newest, 6, alice)
	older, longer := copyOf(t, newest), copyOf(t, newest)
	withdrawn := sign(newest, 7)
	sign(longer, 8, alice)
	for name, c := range map[string]struct {
		file   *File
		pushed []byte
		older  bool
	}{
		"an older one":                 {older, withdrawn, true},
		"one that began from an older": {longer, withdrawn, true},
		"the same":                     {newest, withdrawn, false},
		"a later one":                  {newest, named, false},
		"the first":                    {newest, nil, false},
		"after one that nobody signed": {older, []byte("{}"), false},
		"after another cluster's":      {older, sign(newFile(t), 7), false},
	} {
		if err := c.file.Cluster.CheckCopy(c.pushed, "", false); errors.Is(err, ErrOlderCopy) != c.older || !c.older && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each change counts, in the file itself, and what was only tried does not. A file that was lent has its earlier form.
func TestRevisionCounts(t *testing.T) {
	f := newFile(t)
	text := func(c *Cluster) string {
		plain, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		return string(plain)
	}
	for _, name := range []string{`"revision"`, `"changed"`, `"signed"`} {
		if strings.Contains(text(f.Cluster), name) {
			t.Errorf("a new file has %s", name)
		}
	}
	refused := errors.New("no")
	if err := f.Update(func(*Cluster) error { return refused }); !errors.Is(err, refused) || f.Cluster.Revision.Number != 0 {
		t.Errorf("revision %d: %v", f.Cluster.Revision.Number, err)
	}
	for want := range uint64(3) {
		if err := f.Update(func(c *Cluster) error { c.Hear(hullmark.EKID{1}, time.Now()); return nil }); err != nil {
			t.Fatal(err)
		}
		got := reopen(t, f).Cluster.Revision
		if got.Number != want+1 || time.Since(got.Time) > time.Hour || got.String() != f.Cluster.Revision.String() {
			t.Errorf("%v after %d changes, in memory %v", got, want+1, f.Cluster.Revision)
		}
	}
	lent := mustLend(t, f, firstMachine, false)
	if err := begins(lent, firstMachine, 1); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{`"revision"`, `"changed"`, `"signed"`} {
		if strings.Contains(text(lent.Cluster), name) || !strings.Contains(text(f.Cluster), name) {
			t.Errorf("%s is in a file that was lent, or not in the one that lent it", name)
		}
	}
}

func TestParseRevision(t *testing.T) {
	r := Revision{Number: 31, Time: time.Date(2026, 9, 30, 10, 0, 0, 0, time.UTC)}
	if got, err := ParseRevision(r.String()); err != nil || got.String() != r.String() {
		t.Errorf("%q came back as %v, %v", r, got, err)
	}
	for _, text := range []string{
		"", "31", "revision 0 of 2026-09-30T10:00:00Z", "revision 031 of 2026-09-30T10:00:00Z", "revision -1 of 2026-09-30T10:00:00Z", "revision 9999999999999999999999 of 2026-09-30T10:00:00Z",
		"revision 31 of yesterday", "revision 31 of 2026-09-30T12:00:00+02:00", "revision 31 of 2026-09-30T10:00:00.5Z", "revision 31 of 2026-09-30T10:00:00Z\n", "revision 31 of 2026-09-30T10:00:00Z, use none",
	} {
		if r, err := ParseRevision(text); err == nil {
			t.Errorf("%q was read as %v", text, r)
		}
	}
}

func TestDecodeRefusesStamps(t *testing.T) {
	f := raise(t, raise(t, newFile(t), 1), 2)
	good := f.Cluster.signed
	if len(good) != 2 || good[0].Version != 1 || good[1].Version != 2 {
		t.Fatalf("the file notes %+v", good)
	}
	var many []stamp
	for n := range maxStamps + 1 {
		many = append(many, stamp{uint64(n + 1), good[0].Digest})
	}
	for name, signed := range map[string][]stamp{
		"descending": {good[1], good[0]}, "one twice": {good[0], good[0]}, "of version 0": {{0, good[0].Digest}}, "a short digest": {{1, good[0].Digest[1:]}}, "no digest": {{Version: 1}}, "too many": many,
	} {
		changed := *f.Cluster
		changed.signed = signed
		plain, err := changed.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(plain); err == nil || !strings.Contains(err.Error(), "signed:") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
