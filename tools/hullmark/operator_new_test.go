package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// grant makes an operator's file, whose passphrase is beside it.
func (s *site) grant(t *testing.T, name, may string, more ...string) (int, string) {
	t.Helper()
	s.write(t, name+".passphrase", []byte(name+"'s own\n"))
	args := []string{
		"operator", "new", name, "--may", may, "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"),
		"--out", s.path(name), "--operator-passphrase-file", s.path(name + ".passphrase"),
	}
	code, output := hullmarkCLI(t, append(args, more...)...)
	if code == 0 {
		s.cheapen(t, name)
	}
	return code, output
}

// cheapen makes the file one that is opened at once: the passphrases here guard nothing.
func (s *site) cheapen(t *testing.T, name string) {
	t.Helper()
	g := s.openOperator(t, name)
	if err := os.Remove(s.path(name)); err != nil {
		t.Fatal(err)
	}
	const cheap = 4
	if err := cluster.CreateOperatorFile(s.path(name), hullmark.NewSecret([]byte(name+"'s own")), g, cheap); err != nil {
		t.Fatal(err)
	}
}

// by runs a verb with an operator's file.
func (s *site) by(t *testing.T, name string, verb ...string) (int, string) {
	t.Helper()
	return hullmarkCLI(t, append(verb, "--cluster", s.path(name), "--passphrase-file", s.path(name+".passphrase"))...)
}

// openOperator reads an operator's file.
func (s *site) openOperator(t *testing.T, name string) *cluster.Grant {
	t.Helper()
	_, operator, err := cluster.OpenAny(s.path(name), hullmark.NewSecret([]byte(name+"'s own")))
	if err != nil || operator == nil {
		t.Fatal(operator, err)
	}
	return operator.Grant
}

// An operator does what he was granted, by a file of his own, and is told of anything else what he lacks.
func TestOperatorsLookAndRecover(t *testing.T) {
	s := newDownSite(t)
	first := s.node.Ticket()
	code, output := s.grant(t, "alice", "look")
	wantExit(t, code, 0, output, "operator alice may look until "+time.Now().Add(operatorLife).UTC().Format(time.DateOnly), "policy version", "next: hullmark policy push")
	code, output = s.grant(t, "bob", "recover,look")
	wantExit(t, code, 0, output, "operator bob may look,recover")
	code, output = hullmarkCLI(t, "operator", "list", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output, "alice", "bob", "look,recover")
	code, output = s.by(t, "alice", "operator", "list")
	wantExit(t, code, 0, output, "this is the file of operator alice, who may look until")
	code, output = hullmarkCLI(t, "policy", "show", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output, "operator alice may look", "operator bob may look,recover")

	for _, verb := range []string{"status", "logs"} {
		code, output = s.by(t, "alice", "node", verb, "--node", s.address, "--wait", "5s")
		wantExit(t, code, 0, output)
	}
	code, output = s.by(t, "alice", "recover", "--yes", "--node", s.address, "--wait", "5s")
	wantExit(t, code, exitDenied, output, "operator-not-permitted", `recover needs the permission "recover", which operator alice does not have`)
	if s.node.Ticket() != first {
		t.Error("the node got a ticket")
	}
	before := s.open(t).Epochs[s.node.ID]
	s.node.Epoch = 5
	code, output = s.by(t, "bob", "recover", "--yes", "--node", s.address, "--wait", "5s")
	wantExit(t, code, 0, output, "PCR 4", "equal", "at epoch 5", "control-plane-1 is Ready")
	ticket, proceed := s.node.Ticket(), s.node.Proceed()
	if ticket.Kind != hullmark.Recover || !ticket.Disk.Epoch.Unchecked || ticket.Disk.FormatAllowed || !ticket.Disk.Key.Equal(first.Disk.Key) {
		t.Errorf("the ticket is %+v", ticket)
	}
	if proceed.GetNodeName() != "control-plane-1" || len(proceed.GetFiles())+len(proceed.GetHooks())+len(proceed.GetNames()) != 0 || proceed.GetEndpoint() != "" {
		t.Errorf("he brought %d files, endpoint %q", len(proceed.GetFiles()), proceed.GetEndpoint())
	}
	if known := s.openOperator(t, "bob").Known.Epochs[s.node.ID]; known.Epoch != 5 || known.Heard.IsZero() {
		t.Errorf("his file knows %+v", known)
	}
	if after := s.open(t).Epochs[s.node.ID]; after != before {
		t.Errorf("the cluster file went from %+v to %+v", before, after)
	}
	s.node.Epoch = 4 // An older disk than the one that he saw.
	code, output = s.by(t, "bob", "recover", "--yes", "--node", s.address, "--wait", "5s")
	wantExit(t, code, exitDenied, output, "rollback-detected")
}

// A disk that was made after the file is not opened by it.
func TestOperatorsFileIsOfItsTime(t *testing.T) {
	s := newDownSite(t)
	code, output := s.grant(t, "bob", "recover")
	wantExit(t, code, 0, output, "operator bob may look,recover") // Who recovers has to fetch the newest policy.
	ready := s.node.Disk
	s.node.Disk.UUID = hullmark.UUID{8}
	before := s.node.Ticket()
	code, output = s.by(t, "bob", "recover", "--yes", "--node", s.address, "--wait", "5s")
	wantExit(t, code, exitDenied, output, "disk-key-missing", "operator bob", "hullmark operator new --replace")
	if s.node.Ticket() != before {
		t.Error("the node got a ticket")
	}
	s.node.Disk = ready
	code, output = s.by(t, "bob", "recover", "--yes", "--node", s.address, "--wait", "5s")
	wantExit(t, code, 0, output, "control-plane-1 is Ready")
}

// What needs the cluster file says so of an operator's.
func TestOperatorsAreRefused(t *testing.T) {
	s := newDownSite(t)
	if code, output := s.grant(t, "bob", "recover"); code != 0 {
		t.Fatal(output)
	}
	for verb, says := range map[string]string{
		"policy push": `policy push needs the permission "change"`, "policy minimum-svn 7": `policy minimum-svn needs the permission "change"`,
		"policy builders --none": "needs the cluster file itself", "policy revoke-operators": "needs the cluster file itself",
		"operator withdraw bob": "needs the cluster file itself", "cluster rotate keyset": "needs the cluster file itself", "node remove worker-1": "needs the cluster file itself",
		"upgrade status": "needs the cluster file itself", "update restart --node " + s.address: "needs the cluster file itself",
		"node reset w --server 192.0.2.7:1": "needs the cluster file itself",
	} {
		code, output := s.by(t, "bob", strings.Fields(verb)...)
		if code != exitDenied || !strings.Contains(output, says) || !strings.Contains(output, "operator bob") {
			t.Errorf("%s: exit %d: %s", verb, code, output)
		}
	}
	code, output := s.by(t, "bob", "operator", "new", "carol", "--may", "look", "--out", s.path("carol"), "--operator-passphrase-file", s.path("bob.passphrase"))
	wantExit(t, code, exitDenied, output, "needs the cluster file itself")
}

// Where the root's key is elsewhere, its signer names operators, whose files need none.
func TestOperatorsUnderARootElsewhere(t *testing.T) {
	s, signer := newRemoteSite(t)
	code, output := s.init(t, "--root-signer", signer)
	wantExit(t, code, 0, output, "control-plane-1 is Ready")
	code, output = s.grant(t, "alice", "look")
	wantExit(t, code, exitUsage, output, "--root-signer")
	code, output = s.grant(t, "alice", "look", "--root-signer", signer)
	wantExit(t, code, 0, output, "operator alice may look")
	status := []string{"node", "status", "--node", s.address, "--wait", "5s"}
	code, output = s.by(t, "alice", status...)
	wantExit(t, code, 0, output)
	code, output = s.by(t, "alice", append(status, "--root-signer", signer)...)
	wantExit(t, code, exitUsage, output, "--root-signer", "the file of operator alice")
	code, output = s.by(t, "alice", "policy", "revoke-operators", "--root-signer", signer)
	wantExit(t, code, exitDenied, output, "needs the cluster file itself")
	code, output = s.with(t, "node status", "--node", s.address, "--wait", "5s")
	wantExit(t, code, exitUsage, output, "--root-signer")
	code, output = s.with(t, "node status", "--node", s.address, "--wait", "5s", "--root-signer", signer)
	wantExit(t, code, 0, output)
}

// Nobody but whoever holds the cluster file names operators, each once, with permissions that there are.
func TestOperatorNewRefuses(t *testing.T) {
	s := newDownSite(t)
	if code, output := s.grant(t, "alice", "look"); code != 0 {
		t.Fatal(output)
	}
	for name, c := range map[string]struct {
		name, may string
		more      []string
		code      int
		says      string
	}{
		"an unknown permission": {"bob", "policy", nil, exitUsage, `"policy" is unknown`},
		"a permission twice":    {"bob", "look,look", nil, exitUsage, "twice"},
		"no permission":         {"bob", "", nil, exitUsage, "--may"},
		"a name in capitals":    {"Bob", "look", nil, exitUsage, "name"},
		"the name of all":       {"root", "look", nil, exitUsage, "not root"},
		"no time":               {"bob", "look", []string{"--valid", "0s"}, exitUsage, "--valid"},
		"a file that is there":  {"alice", "look", nil, exitFailed, "exists already"},
		"a name twice":          {"alice", "look", []string{"--out", s.path("alice-2")}, exitFailed, "--replace"},
		"nobody to replace":     {"bob", "look", []string{"--replace"}, exitFailed, "names no operator bob"},
	} {
		code, output := s.grant(t, c.name, c.may, c.more...)
		if code != c.code || !strings.Contains(output, c.says) {
			t.Errorf("%s: exit %d: %s", name, code, output)
		}
	}
	first := s.openOperator(t, "alice").Who.Key
	code, output := s.grant(t, "alice", "look,recover", "--out", s.path("alice-2"), "--replace")
	wantExit(t, code, 0, output, "operator alice may look,recover")
	policy, err := s.open(t).OpenPolicy()
	if err != nil || len(policy.Operators) != 1 || policy.Operators[0].Key == first {
		t.Errorf("%+v, %v", policy.Operators, err)
	}
	code, output = hullmarkCLI(t, "operator", "withdraw", "alice", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output, "operator alice may do nothing any more", "hullmark policy push")
	code, output = hullmarkCLI(t, "operator", "withdraw", "alice", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, exitFailed, output, "names no operator alice")
	if policy, err := s.open(t).OpenPolicy(); err != nil || len(policy.Operators) != 0 {
		t.Errorf("%+v, %v", policy.Operators, err)
	}
}
