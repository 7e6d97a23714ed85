package main

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/cluster/report"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
)

// reported is the report of a cluster of three machines, one of which stopped, and one of which wants to be looked at.
func reported(t *testing.T) report.Report {
	t.Helper()
	s := newSite(t)
	document := nodetest.Document(t, "image")
	id, err := document.Digest()
	if err != nil {
		t.Fatal(err)
	}
	now, policy := time.Now(), measurements.Policy{
		Version: 3, Documents: []measurements.Accepted{{Document: id}}, Denied: []hullmark.EKID{{9}},
		Operators: []hullmark.Operator{{Name: "alice", Key: hullmark.OperatorKey{1}, May: []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}}},
	}
	machine := func(n byte, name string, role hullmark.Role) operate.Machine {
		policy.Members = append(policy.Members, measurements.Member{EKID: hullmark.EKID{n}, Name: name, Role: role})
		return operate.Machine{Machine: joinservice.Machine{
			EKID: hullmark.EKID{n}, Name: name, Role: role, Document: id, State: joinservice.MachineReady, Seen: now,
			Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}, CertificateEnds: now.Add(48 * time.Hour),
			Record: joinservice.Record{Disk: hullmark.UUID{n}, Committed: 4, Issued: 5},
		}, Image: "node 1"}
	}
	plane, worker, stopped := machine(1, "control-plane-1", hullmark.ControlPlane), machine(2, "worker-1", hullmark.Worker), machine(3, "a-worker-with-a-long-name-of-a-group-d4tkyavyjzwq2hnl", hullmark.Worker)
	worker.CertificateEnds = now.Add(time.Hour)
	stopped.State, stopped.Condition = joinservice.MachineFailed, &hullmark.Condition{Code: "measurement-mismatch", Title: "the machine did not boot what the measurement document describes"}
	if err := s.cluster.SetPolicy(policy, document); err != nil {
		t.Fatal(err)
	}
	r, err := report.New(s.cluster, []operate.Machine{plane, worker, stopped}, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReportIsWritten writes the page and the text, and ends with what somebody has to look at.
func TestReportIsWritten(t *testing.T) {
	r := reported(t)
	r.Policy.Builders = &measurements.Builders{Threshold: 1, Of: []measurements.Builder{{Name: "us"}}}
	o := reportOptions{html: filepath.Join(t.TempDir(), "page.html"), output: "text"}
	earlier := r
	earlier.Policy.Version, earlier.Policy.Operators, earlier.Nodes = 2, []hullmark.Operator{}, r.Nodes[:2]
	var out bytes.Buffer
	err := o.write(&out, r, &earlier)
	if exitCode(err) != exitMismatch || !strings.Contains(err.Error(), "1 of 3 nodes are not what they should be") {
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		"policy version 3, 1 releases, 3 nodes", "builders who have to sign a release: 1 of us\n", "operator alice may look,recover\n", "1 machines are denied by all groups",
		"measurement-mismatch", "certificate ends in", "policy version: 3, before 2", "operator alice, who may look,recover: new", "node worker-1: new",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if page, err := os.ReadFile(o.html); err != nil || !bytes.Contains(page, []byte("1 of 3 nodes are not what they should be")) {
		t.Errorf("the page: %v", err)
	}
	o.output = "json"
	out.Reset()
	if err := o.write(&out, r, nil); exitCode(err) != exitMismatch {
		t.Errorf("%v", err)
	}
	if got, err := report.Parse(out.Bytes()); err != nil || len(got.Nodes) != 3 {
		t.Errorf("its JSON: %v", err)
	}
	r.Nodes, r.Unread = r.Nodes[:0], "a record cannot be read"
	if err := o.write(&out, r, nil); exitCode(err) != exitMismatch {
		t.Errorf("with a record that cannot be read: %v", err)
	}
	file := put(t, "x.cluster", []byte("x"))
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no such report": {[]string{"--since", "none"}, exitFailed, "none"},
		"no report":      {[]string{"--since", put(t, "no.json", []byte(`{"schema":"other"}`))}, exitFailed, "schema"},
		"over the file":  {[]string{"--html", file}, exitUsage, "is what is read"},
		"another format": {[]string{"-o", "yaml"}, exitUsage, "text or json"},
	} {
		code, output := hullmarkCLI(t, append([]string{"report", "--cluster", file}, c.args...)...)
		wantExit(t, code, c.code, name+": "+output, c.want)
	}
}

// TestRecordsWriteNoLines has whoever writes records, or a node, say lines of its own: in whatever is printed of them a value stays one.
func TestRecordsWriteNoLines(t *testing.T) {
	const hostile, shown = "n\nnode z: all\r\n\tis\u2028well\u202e\u3164\x1b", "n node z: all is well"
	now := time.Now()
	condition := func(text string) *hullmark.Condition {
		return &hullmark.Condition{Code: text, Title: text, Step: text, Expected: text, Got: text, Next: text, Because: &hullmark.Condition{Code: text, Title: text, Step: text, Got: text, Next: text}}
	}
	machine := func(text string) joinservice.Machine {
		return joinservice.Machine{
			Name: text, Role: hullmark.Role(text), State: joinservice.MachineState(text), Platform: hullmark.PlatformClaims{Trust: hullmark.TrustClass(text)}, Phase: text,
			Condition: condition(text), Update: &hullmark.UpdateStatus{Running: text, Phase: hullmark.UpdatePhase(text)},
			Refused: []joinservice.Refusal{{Address: netip.MustParseAddr("192.0.2.1"), Condition: condition(text)}},
		}
	}
	r := reported(t)
	for name, write := range map[string]func(out io.Writer, text string) error{
		"report": func(out io.Writer, text string) error {
			r, earlier := r, r
			r.Policy.Releases = []report.Release{{Name: text, Against: text}}
			r.Nodes = []report.Node{{Name: text, State: joinservice.MachineState(text), Release: text, Attention: []string{text}}}
			return writeClusterReport(out, r, &earlier)
		},
		"report, unread": func(out io.Writer, text string) error {
			r := r
			r.Unread = text
			_, err := io.WriteString(out, (&reportOptions{}).write(io.Discard, r, nil).Error())
			return err
		},
		"node list": func(out io.Writer, text string) error {
			return writeNodes(out, []operate.Machine{{Machine: machine(text), Image: text, Release: text}}, now)
		},
		"node remove": func(out io.Writer, text string) error {
			tellRemoved(out, operate.Removed{Machine: machine(text), CertificateEnds: now.Add(time.Hour)}, now)
			return nil
		},
		"update status": func(out io.Writer, text string) error {
			return writeSlots(out, hullmark.UpdateStatus{Running: text, Default: text, Phase: hullmark.UpdatePhase(text), Failed: condition(text)})
		},
		"upgrade plan": func(out io.Writer, text string) error {
			return writePlan(out, upgrade.Plan{
				Spec: upgrade.Spec{Release: text, Sources: []string{text}}, Notes: []string{text}, Against: []*hullmark.Condition{condition(text)},
				Steps: []upgrade.Step{{Node: text, Role: hullmark.Role(text), Pool: text, Attended: true}},
			})
		},
		"upgrade status": func(out io.Writer, text string) error {
			spec := upgrade.Spec{ID: text, Action: hullmark.UpdateRestart, Reason: text}
			return writeState(out, upgrade.Request{Spec: spec}, upgrade.State{
				Spec: spec, Phase: upgrade.Phase(text), Waits: text, Failed: condition(text),
				Nodes: []upgrade.NodeState{{Name: text, Role: hullmark.Role(text), Pool: text, Phase: upgrade.NodePhase(text), Note: text, Failed: condition(text)}},
			})
		},
		"upgrade status, not begun": func(out io.Writer, text string) error {
			return writeState(out, upgrade.Request{Spec: upgrade.Spec{ID: text, Release: text}}, upgrade.State{})
		},
		"upgrade status, followed": func(out io.Writer, text string) error {
			writeChange(out, upgrade.Change{Node: text, Text: text}, now)
			return nil
		},
		"progress": func(out io.Writer, text string) error {
			lines(out)(text)
			return nil
		},
		"voucher list": func(out io.Writer, text string) error {
			v := operate.Voucher{}
			v.Name, v.Group, v.ProviderID = text, text, text
			return writeVouchers(out, []operate.Voucher{v})
		},
		"a node's condition": func(out io.Writer, text string) error {
			_, err := io.WriteString(out, told{condition(text)}.Error())
			return err
		},
	} {
		var got, want bytes.Buffer
		if err := errors.Join(write(&got, hostile), write(&want, shown)); err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() || !strings.Contains(want.String(), shown) {
			t.Errorf("%s: it prints\n%s\nwant\n%s", name, got.String(), want.String())
		}
	}
}
