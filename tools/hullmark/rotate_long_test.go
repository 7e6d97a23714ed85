//go:build long

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
)

func TestRotateOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	s.run(t, exitUsage, "cluster rotate ca", `"ca": want keyset, online-ca, kubelet-ca, etcd-ca, front-proxy-ca, kubernetes-ca or root`)
	s.run(t, exitFailed, "cluster rotate keyset", "no policy yet")
	s.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+hullmark.EKID{7}.String())
	s.run(t, 0, "policy push")
	before := s.pushed(t)
	s.run(t, 0, "cluster rotate keyset", "newest generation is 2", "the first of them with hullmark recover")
	s.run(t, 0, "cluster rotate online-ca", "newest generation is 2")
	if after := s.pushed(t); after.Rotation != 2 || after.Version != before.Version+2 {
		t.Errorf("the cluster has policy version %d of rotation %d, after version %d", after.Version, after.Rotation, before.Version)
	}

	// The API is away: nothing is exchanged, however often that is tried.
	for range 2 {
		code, output := hullmarkCLI(t, "cluster", "rotate", "keyset", "--server", "127.0.0.1:1", "--wait", "1s", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
		wantExit(t, code, exitUnreachable, output, joinservice.CodeUnreachable)
	}
	s.run(t, 0, "cluster rotate keyset", "newest generation is 3")
	if after := s.pushed(t); after.Rotation != 3 {
		t.Errorf("rotation %d was pushed", after.Rotation)
	}
	file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	if file.Cluster.Keys.Current() != 3 {
		t.Errorf("the keyset has generation %d", file.Cluster.Keys.Current())
	}
}

// The root goes over to another, and is given up once no machine needs it. Each is done once, however often the command was interrupted.
func TestRotateRootOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	s.run(t, exitFailed, "cluster rotate root", "no policy yet")
	s.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+hullmark.EKID{7}.String())
	s.run(t, 0, "policy push")
	s.run(t, exitFailed, "cluster forget-root", "no root but the present one")
	roots := []hullmark.ClusterRoot{s.reread(t)}
	s.keep(t, joinservice.Machine{
		EKID: hullmark.EKID{7}, Name: "worker-1", Role: hullmark.Worker, Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}, State: joinservice.MachineReady,
		Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 1, Issued: 1},
	})
	s.keep(t, joinservice.Machine{EKID: hullmark.EKID{8}, Name: "worker-2", Role: hullmark.Worker, State: joinservice.MachineWaiting}) // It never had a ticket.
	if listed := s.run(t, 0, "node list"); strings.Contains(listed, "old root") {
		t.Errorf("before the exchange: %s", listed)
	}
	copied, err := os.ReadFile(s.path("cluster"))
	if err != nil {
		t.Fatal(err)
	}

	code, output := hullmarkCLI(t, "cluster", "rotate", "root", "--server", "127.0.0.1:1", "--wait", "1s", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, exitUnreachable, output, joinservice.CodeUnreachable)
	if s.reread(t) != roots[0] {
		t.Error("the root was exchanged while the API was away")
	}
	output = s.run(t, 0, "cluster rotate root", "the first of them with hullmark recover")
	roots = append(roots, s.reread(t))
	if !strings.Contains(output, "cluster root "+roots[1].String()) {
		t.Errorf("the output does not name root %s: %s", roots[1], output)
	}
	if p := s.pushed(t); p.Rotation != 1 || len(p.CrossCertificates) != 2 || p.FirstRoot != roots[0] {
		t.Errorf("the cluster has a policy of rotation %d with %d certificates and first root %s", p.Rotation, len(p.CrossCertificates), p.FirstRoot)
	}
	code, output = hullmarkCLI(t, "policy", "show", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, 0, output, "root "+roots[1].String(), "may still name root "+roots[0].String())

	// An old copy of the cluster file is told apart.
	s.write(t, "copy", copied)
	code, output = hullmarkCLI(t, "policy", "push", "--server", s.env.Address, "--cluster", s.path("copy"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, exitDenied, output, "a copy from before it was exchanged")

	// The power was cut before the second exchange was pushed.
	s.update(t, (*cluster.Cluster).RotateRoot)
	roots = append(roots, s.reread(t))
	s.run(t, 0, "cluster rotate root", "begun before", "cluster root "+roots[2].String())
	if p := s.pushed(t); s.reread(t) != roots[2] || p.Rotation != 2 || len(p.CrossCertificates) != 4 {
		t.Errorf("the cluster has a policy of rotation %d with %d certificates", p.Rotation, len(p.CrossCertificates))
	}
	s.run(t, exitFailed, "cluster rotate root", "hullmark cluster forget-root")

	listed := s.run(t, 0, "node list")
	if strings.Count(listed, "old root") != 1 || !strings.Contains(listed, "worker-1") {
		t.Errorf("after the exchange: %s", listed)
	}
	s.run(t, exitDenied, "cluster forget-root", "worker-1;", "(--except)")
	s.run(t, exitUsage, "cluster forget-root --except worker-1 --except worker-2", "worker-2: no machine of that name")
	s.run(t, 0, "cluster forget-root --except worker-1", "root "+roots[0].String()+" is given up")
	if p := s.pushed(t); len(p.CrossCertificates) != 2 {
		t.Errorf("the cluster has a policy with %d certificates", len(p.CrossCertificates))
	}
	s.names(t, hullmark.EKID{7}, roots[1])
	s.run(t, exitDenied, "cluster forget-root", "worker-1;")
	s.names(t, hullmark.EKID{7}, roots[2])
	if listed := s.run(t, 0, "node list"); strings.Contains(listed, "old root") {
		t.Errorf("by the new configuration: %s", listed)
	}
	s.update(t, (*cluster.Cluster).ForgetRoot)
	s.run(t, 0, "cluster forget-root", "begun before")
	if p := s.pushed(t); len(p.CrossCertificates) != 0 || p.FirstRoot != roots[0] {
		t.Errorf("the cluster has a policy with %d certificates and first root %s", len(p.CrossCertificates), p.FirstRoot)
	}
}

// Of two copies of a cluster file the older one changes nothing in the cluster, until its operator says that the newer one is lost.
func TestOlderCopyOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	s.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+hullmark.EKID{7}.String())
	s.run(t, 0, "policy push")
	copied, err := os.ReadFile(s.path("cluster"))
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "copy", copied)
	older := func(code int, verb string, contains ...string) {
		t.Helper()
		args := append(strings.Fields(verb), "--cluster", s.path("copy"), "--passphrase-file", s.path("passphrase"))
		if !strings.HasPrefix(verb, "policy add") {
			args = append(args, "--server", s.env.Address)
		}
		got, output := hullmarkCLI(t, args...)
		wantExit(t, got, code, output, contains...)
	}
	older(0, "policy push")
	s.run(t, 0, "policy add member --role worker --name worker-2 --ekid "+hullmark.EKID{8}.String())
	s.run(t, 0, "policy push")
	for _, verb := range []string{"policy push", "policy push --withdraw", "cluster rotate keyset", "node remove worker-1"} {
		older(exitDenied, verb, "another copy of this cluster file was used since", "policy version 2, brought by revision", "hullmark policy push --newest-lost")
	}
	older(0, "policy add member --role worker --name worker-3 --ekid "+hullmark.EKID{9}.String(), "policy version 2")
	older(exitDenied, "policy push", "did not sign")
	older(exitDenied, "policy push --newest-lost", "give the policy of this copy a higher one")
	older(0, "policy add member --role worker --name worker-4 --ekid "+hullmark.EKID{10}.String(), "policy version 3")
	older(exitDenied, "policy push", "did not sign")
	if p := s.pushed(t); p.Version != 2 || p.Members[1].Name != "worker-2" {
		t.Errorf("the cluster has policy version %d of %+v", p.Version, p.Members)
	}
	older(0, "policy push --newest-lost")
	older(0, "cluster rotate keyset")
	s.run(t, exitDenied, "policy push", "another copy of this cluster file was used since", "policy version 4")
}

// reread opens the cluster file, as it is by now, and returns its root.
func (s *apiSite) reread(t *testing.T) hullmark.ClusterRoot {
	t.Helper()
	s.cluster = s.open(t)
	return s.cluster.ID()
}

// update changes the cluster file as a command does that ends there.
func (s *apiSite) update(t *testing.T, change func(*cluster.Cluster) error) {
	t.Helper()
	file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Update(change); err != nil {
		t.Fatal(err)
	}
}

// names records which root a machine's configuration names.
func (s *apiSite) names(t *testing.T, node hullmark.EKID, root hullmark.ClusterRoot) {
	t.Helper()
	m, version, err := s.client.Load(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	m.Root = root
	if _, err := s.client.Store(t.Context(), m, version); err != nil {
		t.Fatal(err)
	}
}
