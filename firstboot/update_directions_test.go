package firstboot

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// cached is what the join service keeps of the newest policy.
func (u *explored) cached() string {
	text, err := json.Marshal(map[string]any{"envelope": u.policy["after"], "documents": map[string][]byte{}})
	if err != nil {
		u.t.Fatal(err)
	}
	return string(text)
}

// told is a direction as the node hears it.
type told struct {
	order
	release string
}

// directed is what the node is told when it asks: what the cluster wants next, or what goes wrong instead.
func (u *explored) directed(a updater, s hullmark.UpdateStatus) (d told, ok bool) {
	switch what := u.fault(&u.Left.Message, "asking", "no answer", "an old stage", "an old try", "an old restart", "a restart"); what {
	case "no answer":
		return d, false
	case "an old stage", "an old try", "an old restart":
		action := hullmark.UpdateAction(what[len("an old "):])
		if u.Past[action] == 0 || u.Past[action] > s.Serial {
			return d, false
		}
		return u.tells(action, u.Past[action]), true
	case "a restart":
		u.Issued, u.Last = u.Issued+1, hullmark.UpdateRestart
	}
	if d, ok := u.lied(); ok {
		return d, true
	}
	if s.Release() == rootOf("old") && u.Asked == "" && u.fault(&u.Left.Withdraw, "the operator", "the release is withdrawn") != "" {
		u.Withdrawn = true
		if err := a.kept.write(policyCache, []byte(u.cached())); err != nil {
			u.t.Fatal(err)
		}
		return d, false
	}
	if u.Issued <= s.Serial {
		u.Issued, u.Last = max(u.Issued, s.Serial)+1, hullmark.UpdateStage
		if s.Phase == hullmark.UpdateStaged && s.Failed == nil {
			u.Last = hullmark.UpdateTry
		}
	}
	return u.tells(u.Last, u.Issued), true
}

// tells is an honest direction.
func (u *explored) tells(action hullmark.UpdateAction, serial uint64) told {
	release := "new"
	if action == hullmark.UpdateRestart {
		release = ""
	}
	u.b.Say("direction %d: %s", serial, action)
	return told{u.order(action, release, u.inForce(), serial), release}
}

// lied is a direction of a release that must not be taken. To try it, the host has put it into the slot.
func (u *explored) lied() (d told, ok bool) {
	var lies []string
	for _, release := range slices.Sorted(maps.Keys(wrongs)) {
		lies = append(lies, "stage "+release, "try "+release, "rollback "+release)
	}
	if u.Withdrawn {
		lies = []string{"stage new", "try new", "rollback new"}
	}
	action, release, ok := strings.Cut(u.fault(&u.Left.Lie, "a join service lies", lies...), " ")
	if !ok {
		return d, false
	}
	policy := "before"
	if release == "unsigned" {
		policy = "stranger's"
	}
	if hullmark.UpdateAction(action) != hullmark.UpdateStage {
		u.put(release)
	}
	u.Issued++
	return told{u.order(hullmark.UpdateAction(action), release, policy, u.Issued), release}, true
}
