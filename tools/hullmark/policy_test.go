package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/measurements"
)

func TestPolicy(t *testing.T) {
	document, list, values := explainFixture(t)
	path := newSite(t).path
	policy := func(verb string, args ...string) (int, string) {
		t.Helper()
		words := append([]string{"policy"}, strings.Fields(verb)...)
		return hullmarkCLI(t, append(append(words, "--cluster", path("cluster"), "--passphrase-file", path("passphrase")), args...)...)
	}
	want := func(code int, verb string, args []string, contains ...string) string {
		t.Helper()
		got, output := policy(verb, args...)
		wantExit(t, got, code, output, contains...)
		return output
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := measurements.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := parsed.Digest()
	if err != nil {
		t.Fatal(err)
	}
	check := []string{document, "--pcrs", list}

	want(exitFailed, "show", nil, "no policy yet")
	want(exitDenied, "check", check, "does not accept this document")
	want(exitFailed, "push", []string{"--server", "127.0.0.1:1"}, "no policy yet")
	want(0, "add document", []string{document, "--enforce", "none"}, "version 1: 1 documents", digest.String(), "enforced: 2,3,4,6,7,9,11,12,13,14", "next: ")
	want(0, "check", check, "accepted: document "+digest.String())
	want(0, "check", append(check, "-o", "json"), `"accepted": true`, `"document": "`+digest.String())
	want(exitUsage, "add document", []string{document, "--enforce", "1"}, "does not predict it")
	want(exitUsage, "add document", []string{document, "--enforce", "x"}, "register numbers")
	want(exitUsage, "add document", nil, "name the measurement document")

	values[7] = values[12]
	write(t, list, pcrread(values))
	want(exitDenied, "check", check, "PCR 7: want")
	want(exitDenied, "check", append(check, "-o", "json"), `"accepted": false`, "PCR 7: want")
	want(exitUsage, "add document", []string{document, "--enforce", "7"}, "has to match anyway")

	want(0, "minimum-svn", []string{"2"}, "from security version 2", "below security version 2 are refused", "warning: no document that it names has security version 2")
	want(exitDenied, "check", check, "its security version is 1, the policy wants at least 2")
	want(exitUsage, "minimum-svn", []string{"1"}, "never lowered")
	want(exitUsage, "minimum-svn", []string{"-1x"}, "")

	want(0, "show", nil, digest.String(), "policy version 2, releases from security version 2", "its SHA-256 begins with ")
	want(exitUsage, "show", []string{"-o", "yaml"}, "text or json")
	shown := want(0, "show", []string{"-o", "json"}, digest.String())
	write(t, path("same"), []byte(shown))
	want(exitFailed, "sign", []string{path("same")}, "want a higher version")
	write(t, path("lower"), []byte(strings.Replace(strings.Replace(shown, `"version": 2`, `"version": 9`, 1), `"minimumSVN": 2`, `"minimumSVN": 1`, 1)))
	want(exitFailed, "sign", []string{path("lower")}, "no lower security version")
	write(t, path("higher"), []byte(strings.Replace(shown, `"version": 2`, `"version": 9`, 1)))
	want(0, "sign", []string{path("higher")}, "version 9")
	write(t, path("unknown"), []byte(strings.Replace(shown, `"version": 2`, `"versions": 10`, 1)))
	want(exitFailed, "sign", []string{path("unknown")}, "unknown field")

	want(exitFailed, "remove document", []string{strings.Repeat("0", 64)}, "names no document 0000")
	want(0, "remove document", []string{digest.String()}, "version 10: 0 documents", "accepted no more")
	want(exitDenied, "check", check, "does not accept this document")
	write(t, path("forgotten"), []byte(strings.Replace(shown, `"version": 2`, `"version": 11`, 1)))
	want(exitFailed, "sign", []string{path("forgotten")}, "not in the cluster file", "policy add document")

	want(0, "revoke-operators", nil, "version 11", "certificates that were made until now are refused")
	text = []byte(want(0, "show", []string{"-o", "json"}, `"operatorsFrom": 11`))
	write(t, path("unrevoked"), bytes.Replace(bytes.Replace(text, []byte(`"version": 11`), []byte(`"version": 12`), 1), []byte(`"operatorsFrom": 11`), []byte(`"operatorsFrom": 1`), 1))
	want(exitFailed, "sign", []string{path("unrevoked")}, "no lower operatorsFrom")
	demands := put(t, "platforms.json", []byte(`{"trust":{"controlPlane":"cvm-paravisor"},"platforms":[{"kind":"azure-snp","demands":{"idKeys":["`+strings.Repeat("00", 48)+`"]}}]}`))
	want(0, "platforms", []string{demands}, "evidence that counts: azure-snp; least class of control planes: cvm-paravisor, of workers: any")
	want(0, "show", nil, "evidence of azure-snp counts", "least class of control planes cvm-paravisor")
	for text, why := range map[string]string{
		`{"platforms":[{"kind":"snp","demands":{}}]}`:               "it gets no ticket by its evidence",
		`{"platforms":[{"kind":"azure-snp","demands":{}}]}`:         "want at least one of either",
		`{"trust":{"worker":"cvm-paravisor","controlPlane":"tpm"}}`: "worker",
		`{"platform":[]}`: "platform",
	} {
		want(exitFailed, "platforms", []string{put(t, "wrong.json", []byte(text))}, why)
	}
	want(0, "platforms", []string{put(t, "none.json", []byte("{}"))}, "evidence that counts: none")
}

func TestPolicyMembers(t *testing.T) {
	s := newSite(t)
	want := func(code int, verb string, args []string, contains ...string) {
		t.Helper()
		words := append(append([]string{"policy"}, strings.Fields(verb)...), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
		got, output := hullmarkCLI(t, append(words, args...)...)
		wantExit(t, got, code, output, contains...)
	}
	one, two := strings.Repeat("11", 32), strings.Repeat("22", 32)
	want(0, "add member", []string{"--ekid", one, "--role", "worker", "--name", "worker-1"}, "member worker-1 added: worker, "+one, "version 1: 0 documents", "1 members", "init")
	want(exitFailed, "add member", []string{"--ekid", one, "--role", "worker", "--name", "worker-2"}, "a rule for worker-1", "policy remove member worker-1")
	want(exitFailed, "add member", []string{"--ekid", two, "--role", "worker", "--name", "worker-1"}, "a rule for worker-1")
	want(exitUsage, "add member", []string{"--ekid", "11", "--role", "worker", "--name", "worker-2"}, "--ekid")
	want(exitUsage, "add member", []string{"--ekid", two, "--role", "master", "--name", "worker-2"}, "--role")
	want(exitUsage, "add member", []string{"--ekid", two, "--role", "worker", "--name", "Worker"}, "--name")
	want(0, "add member", []string{"--ekid", two, "--role", "control-plane", "--name", "control-plane-2", "--provider-id", "test:///2"}, "version 2", "2 members")
	want(0, "show", nil, "worker-1", one, "control-plane-2", "policy version 2")
	want(exitFailed, "remove member", []string{"nobody"}, "names no member nobody")
	want(0, "remove member", []string{"worker-1"}, "worker-1 is admitted no more", "version 3", "1 members")
	policy, err := s.open(t).OpenPolicy()
	if err != nil || policy.Version != 3 || len(policy.Members) != 1 || policy.Members[0].Name != "control-plane-2" || policy.Members[0].ProviderID != "test:///2" {
		t.Errorf("the policy is %+v, %v", policy, err)
	}
}

func TestPolicyGroups(t *testing.T) {
	s := newSite(t)
	want := func(code int, verb string, args []string, contains ...string) string {
		t.Helper()
		words := append(append([]string{"policy"}, strings.Fields(verb)...), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
		got, output := hullmarkCLI(t, append(words, args...)...)
		wantExit(t, got, code, output, contains...)
		return output
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cluster.Root.Certificate.Raw}) // any CA
	s.write(t, "ca.pem", ca)
	s.write(t, "two.pem", append(ca, ca...))
	leaf, err := channel.NewOperator(s.cluster.Root.Certificate, s.cluster.Root.Key, channel.Scope{Verb: channel.VerbInit})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "leaf.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
	group := func(file string, subject ...string) []string {
		args := []string{"--ek-ca", s.path(file)}
		for _, attribute := range subject {
			args = append(args, "--subject", attribute)
		}
		return args
	}
	want(0, "add group cloud", group("ca.pem", "OU=my-project", "O=Cloud, Inc."), "group cloud added: 100 workers at most, with OU=my-project, O=Cloud, Inc., by CN=hullmark root")
	want(exitFailed, "add group cloud", group("ca.pem", "OU=my-project"), "policy remove group cloud")
	want(exitUsage, "add group other", group("ca.pem", "my-project"), "want TYPE=VALUE")
	want(exitFailed, "add group other", group("ca.pem", "UID=me"), "want CN, O, OU, L, ST or C")
	want(exitFailed, "add group other", group("two.pem", "OU=my-project", "L=here"), "could both admit a machine")
	want(exitUsage, "add group other", group("missing", "OU=my-project"), "--ek-ca")
	want(exitFailed, "add group other", group("leaf.pem", "OU=my-project"), "signs no certificates")
	want(exitFailed, "add group other", append(group("ca.pem", "OU=another-project"), "--max", "0"), "want 1 to 10000")
	want(exitFailed, "add group other", append(group("ca.pem", "OU=another-project"), "--pool", "gpu"), `no pool "gpu"`)
	one := strings.Repeat("11", 32)
	want(0, "remove member", []string{one}, "no rule named the machine "+one, "on the deny list of all groups")
	want(exitFailed, "remove member", []string{one}, "names no member")
	want(exitFailed, "remove member", []string{"cloud-vpgqcaaaaaaaaaaa"}, "node list -o json")
	want(0, "show", nil, "cloud", "OU=my-project, O=Cloud, Inc.", "CN=hullmark root", "denied by all groups", one)
	for _, kind := range []string{"group", "document"} {
		if output := want(exitFailed, "remove "+kind, []string{"other"}, "names no "+kind+" other"); strings.Contains(output, "machine") {
			t.Errorf("a %s that is not there is answered with advice about machines: %s", kind, output)
		}
	}
	want(0, "remove group", []string{"cloud"}, "machines of group cloud are admitted no more")
	policy, err := s.open(t).OpenPolicy()
	if err != nil || policy.Version != 3 || len(policy.Groups) != 0 || len(policy.Denied) != 1 {
		t.Errorf("the policy is %+v, %v", policy, err)
	}
}

func TestPolicyShowsExceptions(t *testing.T) {
	s := newSite(t)
	if code, output := s.init(t); code != 0 {
		t.Fatal(output)
	}
	other, disk := hullmark.EKID{9}, hullmark.UUID{8}
	if err := s.update(t, func(c *cluster.Cluster) error {
		policy, err := c.OpenPolicy()
		if err != nil {
			return err
		}
		policy.Version++
		policy.Rebinds = []measurements.Rebind{{Old: other, New: s.node.ID}}
		policy.Resets = []measurements.Reset{{EKID: other, OldUUID: disk}}
		policy.Overrides = []measurements.Override{{Serial: 5, EKID: other, UUID: disk, Epoch: 77}}
		return errors.Join(c.SetPolicy(policy), c.TrustCA(cluster.EtcdCA), c.TrustCA(cluster.FrontProxyCA), c.SignWithCA(cluster.FrontProxyCA), c.TrustCA(cluster.KubernetesCA))
	}); err != nil {
		t.Fatal(err)
	}
	code, output := hullmarkCLI(t, "policy", "show", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output, "node 1", "control-plane-1", "rebind of", "reset of", disk.String(), "override", "77",
		"etcd-ca is exchanged: step 1 of 3 was taken", "front-proxy-ca is exchanged: step 2 of 3 was taken", "kubernetes-ca is exchanged: step 1 of 3 was taken")
	if strings.Contains(output, "kubelet-ca") {
		t.Errorf("an exchange that was not begun is shown: %s", output)
	}
}

func TestPolicyPushNotReached(t *testing.T) {
	s := newSite(t)
	if code, output := s.init(t); code != 0 {
		t.Fatal(output)
	}
	push := []string{"policy", "push", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"), "--server"}
	code, output := hullmarkCLI(t, append(push, "127.0.0.1:1", "--wait", "0s")...)
	wantExit(t, code, exitUnreachable, output, "api-unreachable", "127.0.0.1:1", "next:")
	code, output = hullmarkCLI(t, append(push, "https://x")...)
	wantExit(t, code, exitUsage, output, "--server")
}
