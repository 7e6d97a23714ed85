package explore

import "slices"

// updateNames are the scenarios of an update, which are explored where its code is.
var updateNames = []string{"updates", "directions", "operators", "slots"}

// explorer returns the package that has a scenario, and the edits that put fakes into it.
func explorer(scenario string) (pkg string, fake []edit) {
	switch {
	case scenario == "slots":
		return "firstboot/update", nil
	case slices.Contains(updateNames, scenario):
		return "firstboot", nil
	}
	return "internal/explore", fakes()
}

// updateChecks are those that keep a node from staging, trying or keeping what it must not.
func updateChecks() []check {
	const (
		direct, updates = "firstboot/direct.go", "firstboot/updates.go"
		release, policy = "firstboot/release.go", "firstboot/policy.go"
		finish, agent   = "firstboot/finish.go", "firstboot/agent.go"
		commit          = "firstboot/commit.go"
		judge           = "firstboot/stepjudge.go"
		judged          = "(ctx context.Context, o order) error {\n\tr, err := a.judgeRelease(o.Document, o.document, o.policy)\n"
		notAsked        = "a release runs that nobody asked for"
		twice           = "a direction is followed twice"
		unhealthy       = "a release is kept that was not healthy in this boot"
		over            = "a release is kept whose trial is over"
		atOnce          = "two act on the slots at once"
		saysStaging     = "the status says that the node is staging, and it is not"
		saysTrial       = "the status says that a release is tried, and none is"
		saysNotAsked    = "the new release is kept, and the status says that nobody asked for it"
		asked           = "asked := n.Phase == hullmark.UpdateTrial"
	)
	blind := edit{release, "func (a updater) judgeRelease(id hullmark.DocumentID, document, envelope []byte) (r release, err error) {\n", "func (a updater) judgeRelease(id hullmark.DocumentID, document, envelope []byte) (r release, err error) {\n\t_ = json.Unmarshal(document, &r)\n"}
	return []check{
		{"a trial runs only if the encrypted disk says that it was asked for", "updates", notAsked, []edit{{updates, "case a.onTrial() && (!asked || n.Trial != \"\") && s.Default != \"\":", "case false:"}}},
		{"a trial is of the release that was asked for", "updates", notAsked, []edit{{updates, asked + " && n.RootHash == s.Release()\n", asked + "\n"}}},
		{"that a trial was asked for is noted before the firmware is told", "updates", "a trial that was asked for is refused", []edit{{
			direct, "\terr := a.keepNote(func(n *updateNote) {\n\t\tn.Phase, n.Document, n.RootHash, n.Failed, n.Trial, n.Policy = hullmark.UpdateTrial, document, root, nil, \"\", r.policy\n\t})\n\tif err != nil {\n\t\treturn err\n\t}\n\tif err := errors.Join(a.Slots.Explain(ctx, \"\"), a.Slots.Try(ctx)); err != nil {",
			"\tif err := errors.Join(a.Slots.Explain(ctx, \"\"), a.Slots.Try(ctx), a.keepNote(func(n *updateNote) {\n\t\tn.Phase, n.Document, n.RootHash, n.Failed, n.Trial, n.Policy = hullmark.UpdateTrial, document, root, nil, \"\", r.policy\n\t})); err != nil {",
		}}},
		{"a trial is one boot", "updates", notAsked, []edit{{updates, "(!asked || n.Trial != \"\")", "!asked"}}},
		{"a trial that began is noted", "updates", notAsked, []edit{{updates, "\t\treturn a.keepNote(func(n *updateNote) { n.Trial = trialBegun })\n", "\t\ta.showNote(n)\n\t\treturn nil\n"}}},
		{"a boot that is refused ends no other release's trial", "updates", saysNotAsked, []edit{{updates, "n.RootHash == s.Release() && n.Trial != trialEnded {", "(n.RootHash == s.Release() || true) && n.Trial != trialEnded {"}}},
		{"a trial that did not end well has failed", "updates", saysTrial, []edit{{updates, "\t\tn.Phase, n.Failed = hullmark.UpdateFailed, trialFailed(n.RootHash, n.Failed, text)\n", "\t\t_ = text\n"}}},
		{"a commit that was cut off before its note is one", "updates", saysNotAsked, []edit{{updates, "case asked && n.Trial != trialEnded: //", "case false: //"}}},
		{"a commit is noted", "updates", saysTrial, []edit{{commit, "errors.Join(a.keepNote(func(n *updateNote) { n.committed(s.Release()) }), a.lookAtSlots(ctx))", "errors.Join(a.lookAtSlots(ctx))"}}},
		{"a release that was being written is not staged", "updates", saysStaging, []edit{{updates, "\t\tn.Phase, n.Failed = hullmark.UpdateFailed, interrupted()\n", ""}}},
		{"an agent that begins anew compares the disk with the slots", "updates", saysStaging, []edit{{agent, "return updater(a).settle()", "n, err := updater(a).readNote()\n\t\tupdater(a).showNote(n)\n\t\treturn err"}}},
		{"a release is kept only once the node is Ready in this boot", "updates", unhealthy, []edit{{finish, "\t\t{Name: StepReady, Do: f.waitReady},\n\t\t{Name: StepReady, Do: f.commitTrial},\n", "\t\t{Name: StepReady, Do: f.commitTrial},\n\t\t{Name: StepReady, Do: f.waitReady},\n"}}},
		{"a release is kept only once the image's own checks are passed", "updates", unhealthy, []edit{{commit, "if err := f.start(ctx, healthTarget); err != nil {", "if err := error(nil); err != nil {"}}},
		{"the other slot holds the release that is to be tried", "updates", "the firmware is told to start a slot that does not hold the release", []edit{{direct, "case other != root:", "case false && other != root:"}}},

		{"a direction is followed once", "directions", twice, []edit{{direct, "if err == nil && o.Follows(n.Serial) {", "if _ = n; err == nil {"}}},
		{"a direction is noted before it is begun", "directions", twice, []edit{{direct, "n.Serial, n.Failed = o.Serial, nil", "n.Failed = nil"}}},
		{"a release is judged before it is staged", "directions", "a release is staged of other firmware than the machine's", []edit{blind, {direct, "stage" + judged, "stage" + judged + "\terr = nil\n"}}},
		{"a release is judged again before it is tried", "directions", "a release is tried of other firmware than the machine's", []edit{blind, {direct, "try" + judged, "try" + judged + "\terr = nil\n"}}},
		{"the policy that comes with a release is of the measured root", "directions", "a release is staged that no root signed", []edit{{policy, "\tif !slices.Contains(roots, pinned) {\n", "\tif _ = slices.Contains(roots, pinned); false {\n"}}},
		{"it is no older than the one that the node holds", "directions", "a release is staged that the newest policy of the node does not accept", []edit{{release, "n.Policy); policy.Version < seen {", "n.Policy); false && policy.Version < seen {"}}},
		{"it accepts the release's document", "directions", "a release is staged that the policy does not accept", []edit{{release, "if !policy.accepts(id) {", "if false {"}}},
		{"the release has the security version that the policy demands", "directions", "a release is staged of a lower security version than the policy demands", []edit{{release, "if r.SVN < policy.MinimumSVN {", "if false {"}}},
		{"the release's document is of this machine's firmware", "directions", "a release is staged of other firmware than the machine's", []edit{{release, "return r, a.judgeMachine(r)", "return r, nil"}}},
		{"the node's Kubernetes leads to the release's", "directions", "a release is staged to which this Kubernetes does not lead", []edit{{judge, "func (j stepJudge) forward(ctx context.Context, r release) error {\n", "func (j stepJudge) forward(ctx context.Context, r release) error {\n\tif true {\n\t\treturn nil\n\t}\n"}}},

		{"one acts on the slots at a time", "operators", atOnce, []edit{
			{direct, "\tif !a.updates.working.TryLock() {\n\t\treturn refusedRelease(", "\tif false {\n\t\treturn refusedRelease("},
			{direct, "\t\tdefer a.updates.working.Unlock()\n", "\t\tdefer func() { _ = a.updates.working.TryLock(); a.updates.working.Unlock() }()\n"},
			{commit, "\tdefer f.agent.updates.working.Unlock()\n", "\tdefer func() { _ = f.agent.updates.working.TryLock(); f.agent.updates.working.Unlock() }()\n"},
		}},
		{"a trial's own commit waits for an order", "operators", over, []edit{{commit, "\tif err := f.agent.updates.alone(ctx); err != nil {\n\t\treturn err\n\t}\n\tdefer f.agent.updates.working.Unlock()\n", ""}}},
		{"nothing is staged during a trial", "operators", "the slot that starts by itself is written over", []edit{{direct, "if a.onTrial() {\n\t\treturn refusedRelease(", "if false {\n\t\treturn refusedRelease("}}},
		{"nothing else is tried during a trial, nor what the other slot does not hold", "operators", "a trial begins another", []edit{{direct, "case a.onTrial():", "case false:"}, {direct, "case other != root:", "case false && other != root:"}}},
	}
}

// slotChecks are those of the helper, which keep the disk that the machine boots from from harm, whatever the agent asks for.
func slotChecks() []check {
	return []check{
		{"nothing starts in a slot from before its first write on", "slots", "a slot could start that does not hold a whole release", []edit{{"firstboot/update/stage.go", "\tif err := s.write(make([]byte, gpt.SectorSize), s.to.ESP.Offset()); err != nil {\n\t\treturn err\n\t}\n\tif err := s.dev.Sync(); err != nil {\n\t\treturn err\n\t}\n", ""}}},
	}
}
