package report_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/cluster/report"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

func publicKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func builder(t *testing.T, name string) measurements.Builder {
	t.Helper()
	b, err := measurements.NewBuilder(name, publicKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// alice is an operator.
func alice(may ...hullmark.Permission) []hullmark.Operator {
	return []hullmark.Operator{{Name: "alice", Key: hullmark.OperatorKey{1}, May: may}}
}

// TestSinceTellsEachChange changes one thing of a policy or of a machine between two reports.
func TestSinceTellsEachChange(t *testing.T) {
	second, err := nodetest.Document(t, "next").Digest()
	if err != nil {
		t.Fatal(err)
	}
	first, err := nodetest.Document(t, "image").Digest()
	if err != nil {
		t.Fatal(err)
	}
	one, another := publicKey(t), publicKey(t)
	us := builder(t, "us")
	fifth := func(p *measurements.Policy) {
		p.Members = append(p.Members, measurements.Member{EKID: hullmark.EKID{5}, Name: "worker-5", Role: hullmark.Worker})
	}
	group := func(most int, key []byte) func(*measurements.Policy) {
		return func(p *measurements.Policy) {
			p.Groups = []measurements.Group{{Name: "cloud", Enrollers: [][]byte{key}, Max: most}}
		}
	}
	operators := func(all []hullmark.Operator) func(*measurements.Policy) {
		return func(p *measurements.Policy) { p.Operators = all }
	}
	built := func(threshold int, of ...measurements.Builder) func(*measurements.Policy) { // without releases, which nobody signed
		return func(p *measurements.Policy) {
			p.Documents, p.Builders = nil, measurements.Builders{Threshold: threshold, Of: of}
		}
	}
	slot := func(running string, phase hullmark.UpdatePhase) func(*operate.Machine) {
		return func(m *operate.Machine) {
			m.Update = &hullmark.UpdateStatus{Running: running, Default: running, Phase: phase}
		}
	}
	stopped := func(code string) func(*operate.Machine) {
		return func(m *operate.Machine) {
			m.State, m.Condition = joinservice.MachineFailed, &hullmark.Condition{Code: code, Title: "whose"}
		}
	}
	for name, c := range map[string]struct {
		// before and start are how policy and machine are, then and change what is done, and later is how much later the other report is.
		before, then  func(*measurements.Policy)
		start, change func(*operate.Machine)
		later         time.Duration
		// want are the lines, but for that of the policy's version.
		want []string
	}{
		"nothing":    {},
		"time alone": {later: 30 * time.Minute},
		"another document of the same name": {change: func(m *operate.Machine) { m.Document = second }, want: []string{
			fmt.Sprintf("node worker-1: release: 1 (document %.12s…), before 1 (document %.12s…)", second, first),
		}},
		"another Kubernetes": {
			start:  func(m *operate.Machine) { m.Kubernetes = hullmark.Version{Major: 1, Minor: 35, Patch: 2} },
			change: func(m *operate.Machine) { m.Kubernetes = hullmark.Version{Major: 1, Minor: 36, Patch: 3} },
			want:   []string{"node worker-1: Kubernetes: v1.36.3, before v1.35.2"},
		},
		"another platform": {
			change: func(m *operate.Machine) { m.Platform.Platform = hullmark.PlatformGCP },
			want:   []string{"node worker-1: platform: gcp, before " + hullmark.PlatformTPM},
		},
		"another slot": {
			start: slot("a", hullmark.UpdateIdle), change: slot("b", hullmark.UpdateIdle), want: []string{"node worker-1: slot: b, before a"},
		},
		"a release in the other slot": {
			start: slot("a", hullmark.UpdateIdle), change: slot("a", hullmark.UpdateStaged), want: []string{"node worker-1: the other slot: staged, before none"},
		},
		"other keys": {
			start: func(m *operate.Machine) { m.Rotation = 1 }, change: func(m *operate.Machine) { m.Rotation = 2 },
			want: []string{"node worker-1: keys of rotation: 2, before 1"},
		},
		"a renewed certificate": {
			change: func(m *operate.Machine) { m.CertificateEnds = m.CertificateEnds.Add(24 * time.Hour) },
			want:   []string{"node worker-1: its kubelet's certificate ends: 2026-03-07 05:06 UTC, before 2026-03-06 05:06 UTC"},
		},
		"a first certificate": {
			start: func(m *operate.Machine) { m.CertificateEnds = time.Time{} }, change: func(m *operate.Machine) { m.CertificateEnds = now.Add(48 * time.Hour) },
			want: []string{"node worker-1: its kubelet's certificate ends: 2026-03-06 05:06 UTC, before none"},
		},
		"a certificate that is about to end": {
			start: func(m *operate.Machine) { m.CertificateEnds = now.Add(24*time.Hour + 10*time.Minute) }, later: 30 * time.Minute,
			want: []string{"node worker-1: to look at: its kubelet's certificate ends in 23h40m0s, and was not renewed"},
		},
		"one that was so before": {start: func(m *operate.Machine) { m.CertificateEnds = now.Add(23 * time.Hour) }, later: 30 * time.Minute},
		"silence that goes on":   {start: func(m *operate.Machine) { m.Seen = now.Add(-2 * time.Hour) }, later: 30 * time.Minute},
		"it stops": {
			change: stopped("disk-owner"), want: []string{"node worker-1: state: failed, before ready", "node worker-1: to look at: disk-owner: whose"},
		},
		"it stops for another reason": {
			start: stopped("disk-owner"), change: stopped("disk-failed"),
			want: []string{"node worker-1: to look at: disk-failed: whose", "node worker-1: to look at no more: disk-owner: whose"},
		},
		"a release that is refused": {then: func(p *measurements.Policy) { p.MinimumSVN, p.Documents = 2, p.Documents[:1] }, want: []string{
			"minimum security version: 2, before 0",
			fmt.Sprintf("release 1 (document %.12s…): refused: its security version is 1, the policy wants at least 2, before none", first),
			fmt.Sprintf("release 1 (document %.12s…): accepted no more", second),
			"node worker-1: to look at: the policy does not accept what it booted any more: its security version is 1, the policy wants at least 2",
		}},
		"a member more": {then: fifth, want: []string{"member worker-5 (worker, endorsement key 050000000000…): new"}},
		"a member less": {
			before: fifth, then: func(p *measurements.Policy) { p.Members = p.Members[:1] }, want: []string{"member worker-5 (worker, endorsement key 050000000000…): gone"},
		},
		"a member of another name and role": {
			before: fifth, then: func(p *measurements.Policy) { p.Members[1].Name, p.Members[1].Role = "plane-5", hullmark.ControlPlane },
			want: []string{"member plane-5: name: plane-5, before worker-5", "member plane-5: role: control-plane, before worker"},
		},
		"a group more":        {then: group(3, one), want: []string{"group cloud: new"}},
		"a group less":        {before: group(3, one), then: func(p *measurements.Policy) { p.Groups = nil }, want: []string{"group cloud: gone"}},
		"a group of more":     {before: group(3, one), then: group(4, one), want: []string{"group cloud: at most: 4, before 3"}},
		"a group of others":   {before: group(3, one), then: group(3, another), want: []string{"group cloud: admits others"}},
		"an operator":         {then: operators(alice(hullmark.MayLook)), want: []string{"operator alice, who may look: new"}},
		"an operator no more": {before: operators(alice(hullmark.MayLook)), then: operators(nil), want: []string{"operator alice, who may look: withdrawn"}},
		"an operator who may more": {
			before: operators(alice(hullmark.MayLook)), then: operators(alice(hullmark.MayLook, hullmark.MayRecover)),
			want: []string{"operator alice: may: look,recover, before look"},
		},
		"an operator of another key": {
			before: operators(alice(hullmark.MayLook)), then: func(p *measurements.Policy) { p.Operators[0].Key = hullmark.OperatorKey{2} },
			want: []string{"operator alice: another key"},
		},
		"a demand for builders": {
			before: built(0), then: built(1, us), want: []string{"builders who have to sign a release: 1 of us, before none", "builder us: new"},
		},
		"a demand for more builders": {
			before: built(1, us), then: built(2, builder(t, "us"), builder(t, "them")),
			want: []string{"builders who have to sign a release: 2 of us, them, before 1 of us", "builder us: another key", "builder them: new"},
		},
		"a demand for no builder": {
			before: built(1, us), then: built(0), want: []string{"builders who have to sign a release: none, before 1 of us", "builder us: gone"},
		},
		"a denied machine": {
			then: func(p *measurements.Policy) { p.Denied = []hullmark.EKID{{9}} }, want: []string{"machine of endorsement key 090000000000…: denied by all groups"},
		},
		"a machine that is denied no more": {
			before: func(p *measurements.Policy) { p.Denied = []hullmark.EKID{{9}} }, then: func(p *measurements.Policy) { p.Denied = nil },
			want: []string{"machine of endorsement key 090000000000…: denied no more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.before == nil {
				c.before = func(*measurements.Policy) {}
			}
			site, m := fixture(t, c.before)
			if c.start != nil {
				c.start(&m)
			}
			before := make1(t, site, nil, m)
			if c.then != nil {
				p, err := site.OpenPolicy()
				if err != nil {
					t.Fatal(err)
				}
				p.Version++
				c.then(&p)
				if err := site.SetPolicy(p); err != nil {
					t.Fatal(err)
				}
				c.want = append([]string{"policy version: 8, before 7"}, c.want...)
			}
			if c.change != nil {
				c.change(&m)
			}
			after, err := report.New(site, []operate.Machine{m}, nil, now.Add(c.later))
			if err != nil {
				t.Fatal(err)
			}
			if got := after.Since(before); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestSinceAReportOfBefore reads a report that was written before lists of the policy were in it: of these nothing is said.
func TestSinceAReportOfBefore(t *testing.T) {
	c, m := fixture(t, func(p *measurements.Policy) {
		p.Operators, p.Denied = alice(hullmark.MayLook), []hullmark.EKID{{9}}
		p.Builders = measurements.Builders{Threshold: 1, Of: []measurements.Builder{builder(t, "us")}}
		p.Groups = []measurements.Group{{Name: "cloud", Enrollers: [][]byte{publicKey(t)}, Max: 3}}
	})
	r := make1(t, c, nil, m)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	policy, ok := fields["policy"].(map[string]any)
	for _, name := range []string{"builders", "operators", "memberRules", "groupRules", "denied"} {
		if policy[name] == nil {
			t.Errorf("the report has no %s (%t): this looks at nothing", name, ok)
		}
		delete(policy, name)
	}
	if text, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	old, err := report.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Since(old); len(got) > 0 {
		t.Errorf("%q", got)
	}
	old.Policy.Operators = []hullmark.Operator{}
	if got, want := r.Since(old), []string{"operator alice, who may look: new"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
