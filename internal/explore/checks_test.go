package explore

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
		release, record = "joinservice/release.go", "joinservice/record.go"
		verifier        = "attest/verifier/verifier.go"

		oldCopy      = "an old copy of a disk was opened"
		halfJoined   = "a join that did not end is taken for a joined node"
		neverEnds    = "left alone, a machine tries again and again"
		secondTicket = "a second ticket is given in a boot that used one"
		orphan       = "left alone, it ends: a token is left that no record names"
	)
	return []check{
		{"the counter is not below the epoch's window", "copies", oldCopy, []edit{{tree, "if m.Epoch < g.Epoch.Committed || m.Epoch >= g.Epoch.Issued {", "if m.Epoch >= g.Epoch.Issued {"}}},
		{"the disk's counter is moved on", "crashes", neverEnds, []edit{{tree, "\tm.Epoch = g.Epoch.Issued\n", ""}}},
		{"M5 raises what is committed", "copies", oldCopy, []edit{{record, "r.Committed = max(r.Committed, issued)", ""}}},
		{"an empty disk is not formatted in the place of one that holds data", "disks", "a joined node is given up for an empty disk", []edit{{record, "if r != nil && r.Committed > 0 && !waiver.NewDisk {", "if false {"}}},
		{"the fuse is zero in the registers of whoever gets a ticket", "workload", secondTicket, []edit{{verifier, "got != ([32]byte{})", "got != got"}}},
		{"the fuse is blown before the disk is used", "workload", secondTicket, []edit{{finish, "\t\t{Name: StepFuse, Do: x.blowFuse},\n", ""}}},
		{"an agent that begins after the fuse restarts its machine", "restarts", neverEnds, []edit{{agent, "registers[attest.FuseRegister] == [32]byte{}", "true"}}},
		{"a join that began is not one that ended", "crashes", halfJoined, []edit{{"firstboot/statedisk/manifest.go", "string(m.Files[IntentFile].Content) == IntentDone", "len(m.Files[IntentFile].Content) > 0"}}},
		{
			"what kubeadm wrote is stored before its end is recorded", "crashes", halfJoined,
			[]edit{{
				finish, "\tif err := x.agent.syncState(); err != nil {\n\t\treturn err\n\t}\n\treturn x.agent.recordIntent(statedisk.IntentDone)\n}\n\nfunc (x *exchange) kubeadmInit",
				"\treturn x.agent.recordIntent(statedisk.IntentDone)\n}\n\nfunc (x *exchange) kubeadmInit",
			}},
		},
		{"what an interrupted join left is removed", "crashes", neverEnds, []edit{{finish, "\tif x.joins() {\n\t\tif err := x.agent.removeState(kubeadm.JoinRemains()...)", "\tif false {\n\t\tif err := x.agent.removeState(kubeadm.JoinRemains()...)"}}},
		{"record B is written last", "crashes", neverEnds, []edit{{
			format, "\tif err := writeThrough(disk, area, 0); err != nil {\n\t\treturn err\n\t}\n\treturn writeThrough(disk, statedisk.EncodeB(r, area, keys.Header), statedisk.OffsetB)",
			"\tif err := writeThrough(disk, statedisk.EncodeB(r, area, keys.Header), statedisk.OffsetB); err != nil {\n\t\treturn err\n\t}\n\treturn writeThrough(disk, area, 0)",
		}}},
		{"record A is written first", "crashes", neverEnds, []edit{{format, "\terr = begin(disk, size, found, id, keys)\n", "\t_, _ = size, found\n"}}},
		{"half of a record A is nobody's", "crashes", neverEnds, []edit{{format, "\tif !torn {\n", "\tif _ = torn; true {\n"}}},
		{"a name is one machine's", "names", "two machines are one node", []edit{{release, "\t\tif err := x.service.Records.Claim(ctx, x.admission.Member.Name, x.claims.Node); err != nil {\n\t\t\treturn err\n\t\t}\n", ""}}},
		{
			"a record is replaced only as it was read", "restarts", "two tickets are one",
			[]edit{{"joinservice/service.go", "\t\tversion, err := s.Records.Store(ctx, m, version)\n", "\t\t_, version, _ = s.Records.Load(ctx, node)\n\t\tversion, err := s.Records.Store(ctx, m, version)\n"}},
		},
		{"the number of a ticket is stored before the ticket is sent", "crashes", neverEnds, []edit{{release, "Record: x.admission.Record, Etcd: m.Etcd, Addresses: m.Addresses, Refused: m.Refused, State: MachineAdmitted,", "Record: m.Record, Addresses: m.Addresses, Refused: m.Refused, State: MachineAdmitted,"}}},
		{"the token of an earlier ticket ends before the next ticket", "crashes", orphan, []edit{{release, "\t\tif err := x.end(ctx, m.Token); err != nil {\n", "\t\tif err := x.end(ctx, \"\"); err != nil {\n"}}},
	}
}

// report is what an exploration found.
type report struct {
	Scenario        string
	States, Steps   int
	Events, Crashes int
	Ends            int
	Seconds         float64
	Violation       string   `json:",omitempty"`
	Trace           []string `json:",omitempty"`
}

// names are those of the scenarios.
var names = []string{"crashes", "messages", "restarts", "disks", "copies", "workload", "names", "owners"}
