package explore

import "github.com/hullmark/hullmark/internal/explore/search"

// check is one that the product makes, and what takes it out of the code.
type check struct {
	// what is checked, for people; scenario is where the explorer finds out, and finds what it then says.
	what, scenario, finds string
	without               []edit
}

// checks are those that are taken out, one at a time, to see that the explorer finds out.
func checks() []check {
	const (
		tree, format    = "firstboot/statedisk/volume/tree.go", "firstboot/statedisk/volume/format.go"
		agent, finish   = "firstboot/agent.go", "firstboot/finish.go"
		release, record = "joinservice/exchange.go", "joinservice/record.go"
		verifier        = "attest/verifier/verifier.go"
		asked, issued   = "firstboot/advance.go", "joinservice/advance.go"
		member, policy  = "joinservice/etcdmember.go", "firstboot/policy.go"
		kept, manifest  = "firstboot/kept.go", "firstboot/statedisk/manifest.go"

		oldCopy      = "an old copy of a disk was opened"
		halfJoined   = "a join that did not end is taken for a joined node"
		neverEnds    = "left alone, a machine tries again and again"
		secondTicket = "a second ticket is given in a boot that used one"
		orphan       = "left alone, it ends: a token is left that no record names"
		forgets      = "a member of etcd votes that forgot what it had acknowledged"
		unsigned     = "keys are on the disk that nobody signed"
		standsStill  = "the epoch of a Ready node stands still"
	)
	return []check{
		{"the counter is not below the epoch's window", "copies", oldCopy, []edit{{tree, "if m.Epoch < g.Epoch.Committed || m.Epoch >= g.Epoch.Issued {", "if m.Epoch >= g.Epoch.Issued {"}}},
		{"the disk's counter is moved on", "crashes", neverEnds, []edit{{tree, "\tm.Epoch = g.Epoch.Issued\n", ""}}},
		{"Opened raises what is committed", "copies", oldCopy, []edit{{record, "r.Committed = max(r.Committed, issued)", ""}}},
		{"an empty disk is not formatted in the place of one that holds data", "disks", "a joined node is given up for an empty disk", []edit{{record, "if r != nil && r.Committed > 0 && !waiver.NewDisk {", "if false {"}}},
		{"the fuse is zero in the registers of whoever gets a ticket", "workload", secondTicket, []edit{{verifier, "got != ([32]byte{})", "got != got"}}},
		{"the fuse is blown before the disk is used", "workload", secondTicket, []edit{{finish, "\t\t{Name: StepFuse, Do: f.blowFuse},\n", ""}}},
		{"an agent that begins after the fuse restarts its machine", "restarts", neverEnds, []edit{{agent, "registers[attest.FuseRegister] == [32]byte{}", "true"}}},
		{"a join that began is not one that ended", "crashes", halfJoined, []edit{{"firstboot/statedisk/manifest.go", "string(m.Files[IntentFile].Content) == IntentDone", "len(m.Files[IntentFile].Content) > 0"}}},
		{
			"what kubeadm wrote is stored before its end is recorded", "crashes", halfJoined,
			[]edit{{
				finish, "\tif err := f.agent.syncState(); err != nil {\n\t\treturn err\n\t}\n\treturn f.agent.recordIntent(statedisk.IntentDone)\n}\n\nfunc (f *finishing) kubeadmInit",
				"\treturn f.agent.recordIntent(statedisk.IntentDone)\n}\n\nfunc (f *finishing) kubeadmInit",
			}},
		},
		{"what an interrupted join left is removed", "crashes", neverEnds, []edit{{finish, "\tif f.joins {\n\t\tif err := f.agent.removeState(kubeadm.JoinRemains()...)", "\tif false {\n\t\tif err := f.agent.removeState(kubeadm.JoinRemains()...)"}}},
		{"record B is written last", "crashes", neverEnds, []edit{{
			format, "\tif err := writeThrough(disk, area, 0); err != nil {\n\t\treturn err\n\t}\n\treturn writeThrough(disk, statedisk.EncodeB(r, area, keys.Header), statedisk.OffsetB)",
			"\tif err := writeThrough(disk, statedisk.EncodeB(r, area, keys.Header), statedisk.OffsetB); err != nil {\n\t\treturn err\n\t}\n\treturn writeThrough(disk, area, 0)",
		}}},
		{"record A is written first", "crashes", neverEnds, []edit{{format, "\terr = begin(disk, size, found, id, keys)\n", "\t_, _ = size, found\n"}}},
		{"half of a record A is nobody's", "crashes", neverEnds, []edit{{format, "\tif !torn {\n", "\tif _ = torn; true {\n"}}},
		{"a name is one machine's", "names", neverEnds, []edit{{release, "\t\tif err := p.service.Records.Claim(ctx, p.admission.Member.Name, p.claims.EKID); err != nil {\n\t\t\treturn err\n\t\t}\n", ""}}},
		{
			"a record is replaced only as it was read", "behind", halfJoined,
			[]edit{{"joinservice/service.go", "\t\tversion, err := s.Records.Store(ctx, m, version)\n", "\t\t_, version, _ = s.Records.Load(ctx, node)\n\t\tversion, err := s.Records.Store(ctx, m, version)\n"}},
		},
		{"the number of a ticket is stored before the ticket is sent", "crashes", neverEnds, []edit{{release, "Record: p.admission.Record, Etcd: m.Etcd, Addresses: m.Addresses, Refused: m.Refused, State: MachineAdmitted,", "Record: m.Record, Addresses: m.Addresses, Refused: m.Refused, State: MachineAdmitted,"}}},
		{"the token of an earlier ticket ends before the next ticket", "crashes", orphan, []edit{{release, "\t\tif err := p.end(ctx, m.Token, \"\"); err != nil {\n", "\t\tif err := p.end(ctx, \"\", \"\"); err != nil {\n"}}},
		{"a Ready node's number is on its disk before the node confirms it", "advance", standsStill, []edit{{asked, "\tif err := a.store(issued); err != nil {\n\t\treturn err\n\t}\n", ""}}},
		{"a Ready node's number is recorded before it is sent", "advance", standsStill, []edit{{issued, "\t\tm.Record.Issued++\n", ""}, {issued, "issued = m.Record.Issued\n", "issued = m.Record.Issued + 1\n"}}},
		{"a Ready node's confirmation raises what is committed", "splices", oldCopy, []edit{{issued, "m.Record, err = m.Record.Commit(a.disk, issued)", ""}}},
		{"the manifest of an open disk is the one that the node wrote last, and its number is not below the committed one", "splices", "a node goes on from a manifest that it did not write", []edit{
			{kept, "code != k.keys.last && code != k.keys.next", "code == (statedisk.MAC{})"}, {issued, "if least := m.Record.Least(); epoch < least {", "if least := m.Record.Least(); false && epoch < least {"},
		}},
		{"the next manifest is noted before it is written", "asks", standsStill, []edit{{kept, "\t\tk.keys.next = statedisk.MAC(encoded[len(encoded)-sha256.Size:])\n\t\tif err := k.storeKeysLocked(); err != nil {\n\t\t\treturn err\n\t\t}\n", "\t\tk.keys.next = statedisk.MAC(encoded[len(encoded)-sha256.Size:])\n"}}},
		{"the manifest is replaced whole", "advance", neverEnds, []edit{{
			manifest, "seam.World.Storing(m.Epoch, intent)\nerr := atomicfile.WriteIn(root, ManifestFile, b, 0o600)",
			"seam.World.Storing(m.Epoch, intent)\nerr := root.WriteFile(ManifestFile, nil, 0o600)\nseam.World.Sync()\nerr = errors.Join(err, root.WriteFile(ManifestFile, b, 0o600))\n_ = atomicfile.WriteIn",
		}}},
		{"a disk without its manifest is refused, and so is one below the window", "forged", "a disk was opened whose manifest is gone", []edit{
			{tree, "\tif err != nil || m.Disk != g.UUID {\n", "\tif errors.Is(err, fs.ErrNotExist) {\n\t\tm, err = statedisk.Manifest{Disk: g.UUID, Files: map[string]statedisk.KeptFile{statedisk.IntentFile: {Mode: 0o600, Content: []byte(statedisk.IntentDone)}}}, nil\n\t}\n\tif err != nil || m.Disk != g.UUID {\n"},
			{tree, "if m.Epoch < g.Epoch.Committed || m.Epoch >= g.Epoch.Issued {", "if m.Epoch >= g.Epoch.Issued {"},
		}},
		{"the keys that come with a rotation are those that the signed policy commits to", "keys", unsigned, []edit{{policy, "if hullmark.DigestKeys(rotation, content) != policy.Keys {", "if false {"}}},
		{"the number of a rotation is the signed policy's, in the digest and in the policy", "keys", unsigned, []edit{
			{policy, "if rotation.Number != policy.Rotation {", "if false {"}, {policy, "hullmark.DigestKeys(rotation, content) !=", "hullmark.DigestKeys(hullmark.KeyRotation{Number: policy.Rotation, Blind: rotation.Blind}, content) !="},
		}},
		{"keys come with a policy of the measured root", "keys", unsigned, []edit{{policy, "\tif !slices.Contains(roots, pinned) {\n", "\tif _ = slices.Contains(roots, pinned); false {\n"}}},
		{"no keys replace those of a later signed policy", "newest", "older keys are in the place of newer ones", []edit{{finish, "if brought.Version >= newest.Version && !same {", "if !same {"}}},
		{"a member of etcd that forgot is replaced", "members", forgets, []edit{{member, "if why := o.noted.Missing(o.disk.Etcd); why != \"\" {", "if why := o.noted.Missing(o.disk.Etcd); why == \"-\" {"}, {issued, "c != nil && m.Role == hullmark.ControlPlane {", "c != nil && false {"}, {issued, "a.claim.GetEtcd() == nil &&", "a.claim.GetEtcd() == nil && false &&"}}},
		{"a Ready node's number comes with what its member of etcd has stored", "members", forgets, []edit{{issued, "\t\t\tm.Etcd.Note(a.claim.GetEtcd().HullmarkEtcdState())\n", ""}}},
	}
}

// report is what an exploration found.
type report = search.Report

// names are those of the scenarios.
var names = []string{"crashes", "messages", "restarts", "behind", "disks", "copies", "workload", "names", "advance", "asks", "splices", "forged", "keys", "newest", "members", "owners"}
