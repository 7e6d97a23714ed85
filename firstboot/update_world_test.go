package firstboot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/internal/explore/search"
	"github.com/hullmark/hullmark/measurements"
)

// faults are how often each may still happen.
type faults struct {
	// Cut is of power, Kill of the agent alone, Host what the host does to firmware and slots while the machine is off, Sick a trial that
	// is not healthy, Message a direction that is lost, or an old one that is told, Lie a join service's, Order what an operator does
	// beside the cluster, Again a release that has failed and is asked for once more, Withdraw a policy that accepts it no more.
	Cut, Kill, Host, Sick, Message, Lie, Order, Again, Withdraw int
}

// life is what outlives a boot, and what was asked for.
type life struct {
	// Note is what the state disk keeps of the update; Slots and Next are what is on the other disk, and in firmware.
	Note  string
	Slots update.Slots
	Next  bool
	// Asked is the release whose trial was asked for and is not over; Told says that firmware was told, Tried that it may have failed.
	Asked       string
	Told, Tried bool
	// Begun says that it was let run once, in a boot that is a trial's one.
	Begun bool
	// Issued and Last are the newest direction, and Past the ones before, by what they say.
	Issued uint64
	Last   hullmark.UpdateAction
	Past   map[hullmark.UpdateAction]uint64
	// Withdrawn says that the node holds a policy which does not accept the new release.
	Withdrawn bool
	Left      faults
}

// The releases. What is wrong with the others than old and new is in wrongs.
var releases = []string{"old", "new", "older", "unsigned", "unlisted", "insecure", "foreign", "leap"}

// wrongs is why a release must not be staged or tried.
var wrongs = map[string]string{
	"unsigned": "that no root signed",
	"unlisted": "that the policy does not accept",
	"insecure": "of a lower security version than the policy demands",
	"foreign":  "of other firmware than the machine's",
	"leap":     "to which this Kubernetes does not lead",
}

func rootOf(release string) hullmark.RootHash {
	return hullmark.RootHash{byte(slices.Index(releases, release) + 1)}
}

func nameOf(root hullmark.RootHash) string {
	if root == (hullmark.RootHash{}) {
		return ""
	}
	return releases[root[0]-1]
}

// explored is a machine whose release is changed, and everything that goes wrong meanwhile.
type explored struct {
	t     *testing.T
	stage *stage
	// documents are those of releases, by policy the one that is in force, before the new release was withdrawn and after, and a stranger's.
	documents map[string][]byte
	policy    map[string][]byte

	// These are of one boot: life changes with it, and doing is the release that the order which runs names.
	life
	b     *search.Boot
	doing string
	open  bool
	// ready and checked say that the node was Ready, and its checks were passed, in this boot; kept that the operator waives them.
	ready, checked, kept bool
	// busy says that somebody acts on the slots, beside that an operator orders something else.
	busy, beside bool
	sick         string
}

// newExplored is a machine with a release, whose policy accepts another.
func newExplored(t *testing.T) *explored {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "update")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	u := &explored{t: t, stage: newStage(t), documents: map[string][]byte{}, policy: map[string][]byte{}}
	s := u.stage
	a := s.agent
	a.StateDir, a.RunDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	a.Status.File = filepath.Join(dir, "none", "status.json") // Nobody reads it.
	for _, folder := range []string{a.RunDir, filepath.Join(a.StateDir, "var"), filepath.Join(a.StateDir, statedisk.AgentDir)} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.disk.StateDir, s.cluster.StateDir, s.cluster.Recorded = a.StateDir, a.StateDir, "v1.35.9"
	a.config.ClusterRoot = hullmark.ClusterRootOf(s.root.RawSubjectPublicKeyInfo)
	if err := prover.ExtendEvent(s.tpm, attest.FuseRegister, []byte("used")); err != nil { // It is looked at once the agent begins anew.
		t.Fatal(err)
	}
	tpm := unclosed{remembering{s.tpm, map[string][]byte{}}}
	a.OpenTPM = func() (transport.TPMCloser, error) { return tpm, nil }
	registers, err := prover.ReadRegisters(tpm)
	if err != nil {
		t.Fatal(err)
	}
	var accepted []string
	for _, name := range releases {
		firmware, svn := registers[7], 1
		switch name {
		case "foreign":
			firmware[0]++
		case "insecure":
			svn = 0
		}
		versions, _ := json.Marshal(versions(t, kubernetesOf(name)))
		u.documents[name] = fmt.Appendf(nil, `{"image":{"disk":"%064x","rootHash":"%s",%s,"svn":%d,"registers":[{"register":"pcr7","values":{"sha256":"%s"}}]}`,
			1, rootOf(name), versions[1:], svn, hex.EncodeToString(firmware[:]))
		if !slices.Contains([]string{"older", "unsigned", "unlisted"}, name) {
			accepted = append(accepted, string(u.documents[name]))
		}
	}
	sign := func(by *stage, version uint64, documents ...string) []byte {
		files := by.signed(t, set{version: version, number: 1, keyset: "held", documents: documents, edit: func(p *measurements.Policy) { p.MinimumSVN = 1 }})
		return files[len(files)-1].GetContent()
	}
	u.policy["before"] = sign(s, 1, accepted...)
	u.policy["after"] = sign(s, 2, slices.DeleteFunc(accepted, func(d string) bool { return d == string(u.documents["new"]) })...)
	u.policy["stranger's"] = sign(newStage(t), 9, string(u.documents["unsigned"]))
	return u
}

func kubernetesOf(release string) string {
	switch release {
	case "leap":
		return "v1.37.0"
	case "new":
		return "v1.35.5"
	}
	return oldRelease
}

// order is one that names a release, by the policy of who gives it.
func (u *explored) order(action hullmark.UpdateAction, release, policy string, serial uint64) order {
	o := order{UpdateDirection: hullmark.UpdateDirection{Serial: serial, Action: action}, policy: u.policy[policy]}
	if release != "" {
		o.document, o.Document = u.documents[release], sha256.Sum256(u.documents[release])
	}
	return o
}

func (u *explored) inForce() string {
	if u.Withdrawn {
		return "after"
	}
	return "before"
}

// wrong says why a release must not be staged or tried.
func (u *explored) wrong(release string) string {
	if release == "new" && u.Withdrawn {
		return "that the newest policy of the node does not accept"
	}
	return wrongs[release]
}

// fault lets one of some faults happen, or none.
func (u *explored) fault(left *int, where string, faults ...string) (what string) {
	if *left > 0 {
		if what = u.b.Choose(where, faults...); what != "" {
			*left--
		}
	}
	return what
}

// What unwinds a boot: the power goes, or the agent is killed.
type (
	powerCut    struct{}
	agentKilled struct{}
)

// cut lets the boot, or its agent, end here.
func (u *explored) cut(where string) {
	if u.beside {
		return
	}
	if u.fault(&u.Left.Cut, where, "power cut") != "" {
		u.b.Cut()
		panic(powerCut{})
	}
	if u.open && u.fault(&u.Left.Kill, where, "the agent is killed") != "" {
		panic(agentKilled{})
	}
}

// act is one operation on the slots, or on firmware's variables.
func (u *explored) act(op update.Op, do func()) {
	u.cut("before " + string(op))
	if u.busy {
		u.b.Fail("two act on the slots at once")
	}
	if u.busy = op != update.OpExplain; u.busy {
		u.also("in the middle of " + string(op))
	}
	do()
	u.busy = false
	u.cut("after " + string(op))
}

// also lets an operator order something in the middle of another action.
func (u *explored) also(where string) {
	a := updater{u.stage.agent}
	if _, err := a.kept.opened(); u.beside || err != nil { // A node whose disk is not open takes no order.
		return
	}
	what := u.fault(&u.Left.Order, where, "also stage", "also try", "also roll back", "also keep")
	if what == "" {
		return
	}
	doing, kept := u.doing, u.kept
	u.beside, u.doing = true, "new"
	defer func() { u.beside, u.doing = false, doing }()
	switch what {
	case "also stage":
		if a.onTrial() { // Not what runs, which is refused in any case.
			u.doing = u.other()
		}
		_ = a.obey(u.t.Context(), u.order(hullmark.UpdateStage, u.doing, u.inForce(), 1))
	case "also try":
		_ = a.obey(u.t.Context(), u.order(hullmark.UpdateTry, "new", u.inForce(), 1))
	case "also keep":
		u.kept = true
		if err := a.obey(u.t.Context(), u.order(hullmark.UpdateCommit, "", "", 1)); err != nil {
			u.kept = kept
		}
	case "also roll back":
		u.doing = u.other()
		trial := a.onTrial()
		if err := a.obey(u.t.Context(), u.order(hullmark.UpdateRollback, u.doing, u.inForce(), 1)); errors.Is(err, errReboot) && trial {
			u.Asked = ""
		}
	}
}

// other is the release in the slot that does not run.
func (u *explored) other() string {
	if u.Slots.Running == "b" {
		return nameOf(u.Slots.A)
	}
	return nameOf(u.Slots.B)
}

func (u *explored) running() string {
	if u.Slots.Running == "b" {
		return nameOf(u.Slots.B)
	}
	return nameOf(u.Slots.A)
}

// put writes the slot that does not run.
func (u *explored) put(release string) {
	root := hullmark.RootHash{}
	if release != "" {
		root = rootOf(release)
	}
	if u.Slots.Running == "b" {
		u.Slots.A = root
	} else {
		u.Slots.B = root
	}
}

// Look returns what the slots hold.
func (u *explored) Look(context.Context) (update.Slots, error) {
	u.cut("before a look")
	return u.Slots, nil
}

// Stage puts a release into the slot that does not run. Meanwhile that holds nothing.
func (u *explored) Stage(_ context.Context, r update.Release, _ []string, tell func(update.Fetched)) error {
	name := nameOf(hullmark.RootHash(r.RootHash))
	if why := u.wrong(name); why != "" {
		u.b.Fail("a release is staged %s", why)
	}
	if u.Slots.Running != u.Slots.Default {
		u.b.Fail("the slot that starts by itself is written over")
	}
	u.act(update.OpStage, func() {
		u.put("")
		tell(update.Fetched{Fetched: 1})
		u.cut("in the middle of staging")
		u.put(name)
	})
	return nil
}

// Try has firmware start the other slot next.
func (u *explored) Try(context.Context) error {
	u.act(update.OpTry, func() {
		switch why := u.wrong(u.other()); {
		case u.Slots.Running != u.Slots.Default:
			u.b.Fail("a trial begins another")
		case why != "":
			u.b.Fail("a release is tried %s", why)
		case u.other() != u.doing:
			u.b.Fail("the firmware is told to start a slot that does not hold the release")
		}
		u.Next, u.Told = true, true
	})
	return nil
}

// Commit makes the slot that runs the one that starts by itself.
func (u *explored) Commit(context.Context) error {
	u.act(update.OpCommit, func() {
		if !u.kept && !(u.ready && u.checked) {
			u.b.Fail("a release is kept that was not healthy in this boot")
		}
		if u.Asked != u.running() {
			u.b.Fail("a release is kept whose trial is over")
		}
		u.Slots.Default, u.Asked, u.Told = u.Slots.Running, "", false
	})
	return nil
}

// Explain keeps a text. It comes once a trial was noted, which from then on may have failed.
func (u *explored) Explain(_ context.Context, text string) error {
	u.Tried = true
	u.act(update.OpExplain, func() { u.Slots.Text = text })
	return nil
}
