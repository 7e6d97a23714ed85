//go:build powercut

package e2e

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	powerParts = flag.String("parts", "", "which parts TestPlanes or TestPowerCutsOfVerbs goes through, all if none is named")
	powerEach  = flag.Int("each", 1, "how many cuts TestPowerCutsOfVerbs makes while a command runs, and in each boot that follows from it")
)

// commandTime is about how long an operator's command takes whose API server is emulated.
const commandTime = 8 * time.Second

// step is a part of a campaign.
type step struct {
	name string
	do   func(t *testing.T)
}

// chosen returns those of the parts that -parts names, in their order.
func chosen(t *testing.T, all []step) []step {
	t.Helper()
	left := strings.FieldsFunc(*powerParts, func(r rune) bool { return r == ' ' || r == ',' })
	if len(left) == 0 {
		return all
	}
	var steps []step
	var known []string
	for _, s := range all {
		known = append(known, s.name)
		if i := slices.Index(left, s.name); i >= 0 {
			left, steps = slices.Delete(left, i, i+1), append(steps, s)
		}
	}
	if len(left) > 0 {
		t.Fatalf("-parts: there is no %q; the parts are %s", left[0], strings.Join(known, ", "))
	}
	return steps
}

// What an operator does to a cluster's keys, disks and machines is done once more after the power went while it was done, on the
// control plane and on the machine that it is about; and then it is done. Nobody's data is lost, and no node becomes another.
func TestPowerCutsOfVerbs(t *testing.T) {
	s := newSite(t, "powercut-verbs", 2)
	steps := chosen(t, []step{{"rotate", s.rotateRun}, {"reset", s.resetRun}, {"rebind", s.rebindRun}, {"restore", s.restoreRun}})
	t.Cleanup(func() { t.Logf("\n%s\n", strings.Join(s.rows, "\n")) })
	s.initRun(t)
	s.join(t)
	for _, step := range steps {
		step.do(t)
	}
	s.settled(t)
	t.Logf("%d runs to Ready, of which %d were cut within kubeadm, %d cuts", len(s.rows), s.inside, s.cuts)
}

// repeated are as many such moments as there are to be cuts.
func repeated(m moment) []moment { return slices.Repeat([]moment{m}, *powerEach) }

// verb runs a command that speaks to the API server, to its end.
func (s *site) verb(t *testing.T, words ...string) {
	t.Helper()
	if err := s.cli(t.Context(), slices.Concat(words, s.clusterFlags(), []string{"--server", s.first.api, "--wait", "10m"})...); err != nil {
		t.Fatal(err)
	}
}

// interrupted cuts the control plane's power while a command runs, as often as there are to be cuts, and kills the command. Each time the
// control plane is recovered, through cuts of the boots that this takes.
func (s *site) interrupted(t *testing.T, words ...string) {
	t.Helper()
	what := "hullmark " + strings.Join(words[:2], " ")
	for range *powerEach {
		ctx, kill := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- s.cli(ctx, slices.Concat(words, s.clusterFlags(), []string{"--server", s.first.api, "--wait", "10m"})...)
		}()
		killed := sync.OnceFunc(func() {
			kill()
			t.Logf("%s, interrupted: %v", what, <-done)
		})
		cuts := []moment{{name: "while " + what + " runs", begins: func(string) bool { return true }, within: commandTime}}
		s.run(t, "recovery", s.first, append(cuts, repeated(anyTime(3*time.Minute))...), func(ctx context.Context) error {
			killed() // There is one cluster file: recover must not meet it while it is changed.
			return s.recover(ctx)
		})
	}
}

// rotateRun exchanges keys. What was begun when the power went counts, and is finished by a push; else it is begun again. Then the
// control plane has the keys, or a worker would not come back by it.
func (s *site) rotateRun(t *testing.T) {
	for _, what := range []string{"kubelet-ca", "keyset", "online-ca", "root"} {
		before := s.rotation(t)
		s.interrupted(t, "cluster", "rotate", what)
		if s.rotation(t) > before {
			s.verb(t, "policy", "push")
		} else {
			s.verb(t, "cluster", "rotate", what)
			s.run(t, "recovery with another "+what, s.first, append([]moment{whileReady}, repeated(anyTime(3*time.Minute))...), s.recover)
		}
		if s.rotation(t) == before {
			t.Errorf("the %s was not exchanged", what)
		}
		s.operator = s.clusterFile(t)
	}
	s.rebootRun(t, 0)
}

// rotation is how often keys were exchanged, by the cluster file's policy.
func (s *site) rotation(t *testing.T) uint64 {
	t.Helper()
	policy, err := s.clusterFile(t).OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	return policy.Rotation
}

// resetRun gives the worker an empty disk in the place of its own. It joins anew, as another Node.
func (s *site) resetRun(t *testing.T) {
	w := s.worker
	if err := errors.Join(w.switchOff(), os.Remove(filepath.Join(w.config.Dir, "state.raw"))); err != nil {
		t.Fatal(err)
	}
	s.interrupted(t, "node", "reset", w.name)
	s.verb(t, "node", "reset", w.name)
	before := w.uid
	w.uid, w.boot = "", ""
	s.run(t, "join with an empty disk", w, append(repeated(s.firstBoot(0)), moment{name: "within kubeadm join", begins: inKubeadm, within: s.joins}), byItself)
	if w.uid == before {
		t.Errorf("%s joined with an empty disk, and is the same Node", w.name)
	}
}

// rebindRun moves the worker's disk to another machine, which comes back as the same Node.
func (s *site) rebindRun(t *testing.T) {
	old := s.worker
	if err := old.switchOff(); err != nil {
		t.Fatal(err)
	}
	heir := &powered{name: old.name, uid: old.uid, config: old.config, agent: old.agent, api: old.api, etcd: old.etcd}
	// It is where the old one was, so that its card has the same address: QEMU's router sends what is forwarded to the card that had the IP address
	// last, until it hears of another, and a node with static addresses may have nothing to tell it.
	old.config.Dir += "-gone"
	if err := os.Rename(heir.config.Dir, old.config.Dir); err != nil {
		t.Fatal(err)
	}
	heir.identify(t, s)
	if err := os.Rename(filepath.Join(old.config.Dir, "state.raw"), filepath.Join(heir.config.Dir, "state.raw")); err != nil {
		t.Fatal(err)
	}
	from, err := old.ek()
	if err != nil {
		t.Fatal(err)
	}
	to, err := heir.ek()
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, old.name+" is not Ready", func(ctx context.Context) (bool, error) {
		ready, err := s.ask(ctx, "get", "node", old.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return ready != "" && ready != "True", err
	})
	words := []string{"node", "rebind", "--from", from, "--to", to, "--gone"}
	s.interrupted(t, words...)
	s.verb(t, words...)
	s.worker = heir
	s.run(t, "first boot of the disk's new machine", heir, repeated(anyTime(90*time.Second)), byItself)
	s.verb(t, words...) // Whoever does not know that it is done may do it once more.
}

// identify starts the machine for a moment: its TPM is made then.
func (p *powered) identify(t *testing.T, s *site) {
	t.Helper()
	p.switchOn(t, s.operator, nil)
	if _, err := p.cut(s.random); err != nil {
		t.Fatal(err)
	}
}

// restoreRun loses the control plane's disk, and begins the cluster anew with a backup of etcd, by the same command after each cut. The
// worker comes back as the same Node.
func (s *site) restoreRun(t *testing.T) {
	const question = "jsonpath={.metadata.uid}"
	if _, err := s.ask(t.Context(), "create", "configmap", "before"); err != nil {
		t.Fatal(err)
	}
	before, err := s.ask(t.Context(), "get", "configmap", "before", "-o", question)
	if err != nil {
		t.Fatal(err)
	}
	backup := s.path("etcd.backup")
	if err := s.cli(t.Context(), append(s.clusterFlags(), "etcd", "backup", backup, "--member", s.first.etcd)...); err != nil {
		t.Fatal(err)
	}
	if _, err := s.first.cut(s.random); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.first.config.Dir, "state.raw")); err != nil {
		t.Fatal(err)
	}
	s.first.uid, s.first.boot = "", ""
	cuts := append(repeated(s.firstBoot(0)), repeated(moment{name: "within the restoration", begins: inKubeadm, within: time.Minute})...)
	s.run(t, "restoration of the control plane", s.first, cuts, func(ctx context.Context) error { return s.init(ctx, "--new-disk", "--etcd-backup", backup) })
	if after, err := s.ask(t.Context(), "get", "configmap", "before", "-o", question); err != nil || after != before || before == "" {
		t.Errorf("of before the backup there is %q, %v; want %q", after, err, before)
	}
	s.rebootRun(t, 1)
}

// await asks until the answer is yes.
func (s *site) await(t *testing.T, what string, ask func(context.Context) (bool, error)) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Second) {
		ok, err := ask(t.Context())
		if err == nil && ok {
			return
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("after 10 min it is not so that %s: %v", what, err)
		}
	}
}
