//go:build long

package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// site is a cluster with two replicas of its join service.
type site struct {
	*testenv.Environment
	dir      string
	admin    *registry.Registry
	objects  *client // the administrator's
	replicas []*replica
	machines []*machine
	// beaten is when all Nodes were said to be Ready last.
	beaten time.Time
}

// replica is one process of the join service, which has the same addresses after a restart.
type replica struct {
	*testenv.Process
	dir, binary, api string
	listen, metrics  string
}

// newSite starts an API and makes n machines; the replicas start once the policy knows the machines.
func newSite(t *testing.T, n int) *site {
	t.Helper()
	ctx, s := t.Context(), &site{dir: t.TempDir()}
	var err error
	if s.Environment, err = testenv.Start(ctx, s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, s.Apply(ctx, registry.Manifest()))
	config, err := s.Config("hullmark-operator", "kubeadm:cluster-admins")
	must(t, err)
	s.admin, err = registry.New(config)
	must(t, err)
	s.objects, err = newClient(config)
	must(t, err)
	t.Cleanup(s.objects.close)
	s.makeMachines(t, n)
	s.Cluster.Settings = &joinservice.Settings{ControlPlaneEndpoint: s.Address, Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	must(t, s.accept(1, images...))
	s.startReplicas(t)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *site) startReplicas(t *testing.T) {
	t.Helper()
	binary := filepath.Join(s.dir, "bin", "joinservice")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "github.com/hullmark/hullmark/tools/joinservice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i := range 2 {
		r := &replica{dir: filepath.Join(s.dir, fmt.Sprint("replica-", i)), binary: binary, api: "https://" + s.Address}
		for _, address := range []*string{&r.listen, &r.metrics} {
			var err error
			*address, err = testenv.FreeAddress()
			must(t, err)
		}
		must(t, errors.Join(os.MkdirAll(filepath.Join(r.dir, "state"), 0o700), s.writeCredentials(r.credentials())))
		must(t, r.start(t.Context()))
		s.replicas = append(s.replicas, r)
		t.Cleanup(func() {
			if err := r.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// credentials is the folder that systemd would make.
func (r *replica) credentials() string { return filepath.Join(r.dir, "credentials") }

// start runs the program and returns when it serves.
func (r *replica) start(ctx context.Context) (err error) {
	cmd := exec.Command(r.binary, "-listen", r.listen, "-metrics", r.metrics, "-api", r.api, "-profile")
	cmd.Env = []string{"CREDENTIALS_DIRECTORY=" + r.credentials(), "STATE_DIRECTORY=" + filepath.Join(r.dir, "state")}
	if r.Process, err = testenv.Launch(r.dir, cmd); err != nil {
		return err
	}
	return r.Await(ctx, func() error {
		response, err := http.Get("http://" + r.metrics + "/healthz")
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
}

// writeCredentials makes of a control plane's files what systemd makes of them by the service's unit.
func (s *site) writeCredentials(dir string) error {
	unit, err := os.ReadFile("../../systemd/system/hullmark-joinservice.service")
	if err != nil {
		return err
	}
	files, err := s.Cluster.Files()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for line := range strings.Lines(string(unit)) {
		if name, content, ok := setting(line, "SetCredential=", ":"); ok {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
		name, source, ok := setting(line, "LoadCredential=", ":")
		for _, f := range files {
			switch {
			case !ok:
			case f.Path == source:
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), f.Content, 0o600))
			case path.Dir(f.Path) == source:
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, name+"_"+path.Base(f.Path)), f.Content, 0o600))
			}
		}
	}
	return err
}

// setting takes a unit's line apart.
func setting(line, key, separator string) (name, value string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), key)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, separator)
}

// accept makes the cluster's next policy: all machines, and the documents of these images.
func (s *site) accept(version uint64, images ...string) error {
	policy := measurements.Policy{Version: version}
	var documents []measurements.Document
	for _, image := range images {
		document := documentOf[image]
		id, err := document.Digest()
		if err != nil {
			return err
		}
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: id, Enforce: joinservice.DefaultEnforced(document)})
		documents = append(documents, document)
	}
	for _, m := range s.machines {
		policy.Members = append(policy.Members, m.member())
	}
	return s.Cluster.SetPolicy(policy, documents...)
}

// push gives the cluster its policy as the operator does, and waits until both replicas have taken it.
func (s *site) push(ctx context.Context, version uint64, images ...string) error {
	if err := s.accept(version, images...); err != nil {
		return err
	}
	if err := s.admin.PushPolicy(ctx, s.Cluster.Policy, s.Cluster.Documents); err != nil {
		return err
	}
	return s.inForce(ctx, version)
}

// inForce waits until both replicas say that this version is in force.
func (s *site) inForce(ctx context.Context, version uint64) error {
	for _, r := range s.replicas {
		err := eventually(ctx, func() error {
			got, err := r.metric("hullmark_policy_version")
			if err == nil && got != fmt.Sprint(version) {
				err = fmt.Errorf("policy version %s is in force, want %d", got, version)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eventually waits for what another process is to do.
func eventually(ctx context.Context, done func() error) error {
	return poll(ctx, 100*time.Millisecond, done)
}

// poll looks again and again, for five minutes at most.
func poll(ctx context.Context, pause time.Duration, done func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}
