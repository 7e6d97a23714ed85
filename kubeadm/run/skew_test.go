//go:build skew

package run_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// written are objects of many kinds, each called after who wrote it first; %[1]s is that.
const written = `apiVersion: v1
kind: ServiceAccount
metadata: {name: by-%[1]s, namespace: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: by-%[1]s, namespace: default}
data: {key: value}
---
apiVersion: v1
kind: Secret
metadata: {name: by-%[1]s, namespace: default}
stringData: {key: value}
---
apiVersion: v1
kind: Service
metadata: {name: by-%[1]s, namespace: default}
spec: {selector: {app: a}, ports: [{port: 80}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: by-%[1]s, namespace: default}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: by-%[1]s, namespace: default}
spec: {serviceAccountName: by-%[1]s, automountServiceAccountToken: false, containers: [{name: a, image: a, resources: {requests: {cpu: 10m}}}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: by-%[1]s, namespace: default}
spec: {replicas: 2, selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: a}]}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: by-%[1]s, namespace: default}
spec: {serviceName: a, selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: a}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: by-%[1]s, namespace: default}
spec: {schedule: "1 * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: by-%[1]s, namespace: default}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: by-%[1]s, namespace: default}
spec: {minAvailable: 1, selector: {matchLabels: {app: a}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: by-%[1]s, namespace: default}
spec: {rules: [{host: a.example.net, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: by-%[1]s, namespace: default}
spec: {podSelector: {}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: by-%[1]s}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: by-%[1]s}
value: 10
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: by-%[1]s}
provisioner: example.net/a
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: by-%[1]s}
driverName: example.net
parameters: {a: b}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: by-%[1]s, namespace: default}
spec: {holderIdentity: a}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: by-%[1]s}
spec: {failurePolicy: Ignore, matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [events]}]}, validations: [{expression: "true"}]}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: by-%[1]s}
spec: {type: Limited, limited: {nominalConcurrencyShares: 1, limitResponse: {type: Reject}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: by-%[1]s.example.net}
spec: {selectors: [{cel: {expression: "true"}}]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: by-%[1]ss.example.net}
spec:
  group: example.net
  names: {kind: By%[1]s, plural: by-%[1]ss}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// servers are one etcd and the API servers of two releases, of which one runs at a time.
type servers struct {
	*testenv.Environment
	earlier string
	was, is hullmark.Version
	access  run.Access
}

func newServers(ctx context.Context, t *testing.T) *servers {
	t.Helper()
	bin, was, err := testenv.EarlierPrograms(ctx)
	if err != nil {
		t.Fatal(err)
	}
	is, err := hullmark.ParseVersion(kubeadm.Version)
	if err != nil {
		t.Fatal(err)
	}
	if is.Minor != was.Minor+1 {
		t.Fatalf("the bundle is of %v, and %v is not of the minor release before it: give internal/testenv/testdata/earlier the right one", is, was)
	}
	env, err := testenv.StartServer(ctx, t.TempDir(), bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig, err := env.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	return &servers{env, bin, was, is, run.Access{Read: func(string) ([]byte, error) { return kubeconfig, nil }, Server: env.Address}}
}

// start exchanges the API server, and wants it to say that it is one release and behaves as another.
func (s *servers) start(ctx context.Context, t *testing.T, bin string, is, acts hullmark.Version, flags ...string) {
	t.Helper()
	if err := s.StopAPI(); err != nil {
		t.Fatal(err)
	}
	s.UseServer(bin, flags...)
	if err := s.StartAPI(ctx); err != nil {
		t.Fatal(err)
	}
	said, err := run.ServerVersion(ctx, s.access)
	if err != nil || said.Version != is || !said.Acts.SameLine(acts) {
		t.Fatalf("the API server is %+v, %v; want %v as %s", said, err, is, acts.Line())
	}
}

func (s *servers) kubectl(ctx context.Context, t *testing.T, input string, args ...string) []byte {
	t.Helper()
	out, err := s.try(ctx, input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *servers) try(ctx context.Context, input string, args ...string) ([]byte, error) {
	cmd, err := s.Kubectl(ctx, args...)
	if err != nil {
		return nil, err
	}
	cmd.Stdin = strings.NewReader(input)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, problems.String())
	}
	return out, nil
}

// write makes the objects of one writer, and changes those of all others so that each is stored anew.
func (s *servers) write(ctx context.Context, t *testing.T, by string, others ...string) {
	t.Helper()
	s.kubectl(ctx, t, fmt.Sprintf(written, by), "apply", "--server-side", "-f", "-")
	for _, other := range others {
		s.kubectl(ctx, t, fmt.Sprintf(written, other), "annotate", "--overwrite", "-f", "-", "last="+by)
	}
}

// read returns what the server says of the objects of some writers, but for what changes with each write.
func (s *servers) read(ctx context.Context, t *testing.T, by ...string) map[string]string {
	t.Helper()
	content := map[string]string{}
	for _, writer := range by {
		var list struct{ Items []map[string]any }
		if err := json.Unmarshal(s.kubectl(ctx, t, fmt.Sprintf(written, writer), "get", "-f", "-", "-o", "json"), &list); err != nil {
			t.Fatal(err)
		}
		for _, object := range list.Items {
			name := fmt.Sprintf("%v %v", object["kind"], object["metadata"].(map[string]any)["name"])
			delete(object, "metadata")
			delete(object, "status")
			text, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			content[name] = string(text)
		}
		if len(list.Items) != strings.Count(written, "---\n")+1 {
			t.Fatalf("%s: %d objects were read", writer, len(list.Items))
		}
	}
	return content
}

// same wants objects to say what they did.
func same(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	for name, content := range before {
		if after[name] != content {
			t.Errorf("%s: %s was\n%s\nand is\n%s", what, name, content, after[name])
		}
	}
}

func (s *servers) resources(ctx context.Context, t *testing.T) []step.Resource {
	t.Helper()
	found, err := run.Resources(ctx, s.access)
	if err != nil || len(found) < 50 {
		t.Fatal(len(found), err)
	}
	return found
}

// A cluster goes to the next minor release by real API servers over one etcd: the new one behaves as the old until it is committed, and the
// old one reads, and changes, all that it wrote meanwhile. What is stored in another version afterwards is found, and bars the way back.
func TestMinorStep(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Minute)
	defer cancel()
	s := newServers(ctx, t)
	s.write(ctx, t, "old")
	old, before := s.read(ctx, t, "old"), s.resources(ctx, t)

	s.start(ctx, t, s.Programs(), s.is, s.was, "--emulated-version="+s.was.Line())
	same(t, "the new one, on trial", old, s.read(ctx, t, "old"))
	s.write(ctx, t, "trial", "old")
	trial := s.read(ctx, t, "old", "trial")
	if moved := step.Unreadable(before, s.resources(ctx, t)); len(moved) > 0 {
		t.Errorf("on trial these are stored otherwise: %q", moved)
	}

	s.start(ctx, t, s.earlier, s.was, s.was)
	same(t, "the old one, back", trial, s.read(ctx, t, "old", "trial"))
	s.write(ctx, t, "back", "old", "trial")
	back := s.read(ctx, t, "old", "trial", "back")

	s.start(ctx, t, s.Programs(), s.is, s.was, "--emulated-version="+s.was.Line())
	same(t, "the new one, on trial again", back, s.read(ctx, t, "old", "trial", "back"))
	s.start(ctx, t, s.Programs(), s.is, s.is)
	same(t, "the new one, committed", back, s.read(ctx, t, "old", "trial", "back"))
	s.write(ctx, t, "new", "old", "trial", "back")
	s.checkWayBack(ctx, t, before)
}

// moves is a resource that the earlier release stores as v1beta1 and the later one as v1, which the earlier one serves, too.
const moves = "storage.k8s.io/volumeattributesclasses"

// checkWayBack compares what the judge says of the way back with what the old API server reads of what the new one has stored.
func (s *servers) checkWayBack(ctx context.Context, t *testing.T, before []step.Resource) {
	t.Helper()
	now := s.resources(ctx, t)
	moved := step.Unreadable(before, now)
	t.Logf("stored in a version that %v does not serve: %q", s.was, moved)
	if err := s.back(true, moved); err == nil {
		t.Error("the way back is open after the commit")
	}
	if err := s.back(false, moved); (err != nil) != (len(moved) > 0) {
		t.Errorf("by what is stored alone, with %d resources moved, the way back is %v", len(moved), err)
	}
	// A release that served v1beta1 alone would not read what is stored as v1 by now.
	var former []step.Resource
	for _, r := range before {
		if r.Group+"/"+r.Name == moves {
			r.Version = "v1beta1"
		}
		former = append(former, r)
	}
	if got := step.Unreadable(former, now); !slices.Contains(got, moves) || len(got) != len(moved)+1 {
		t.Errorf("to a release without v1 %q bar the way, want %s, too", got, moves)
	} else if err := s.back(false, got); err == nil {
		t.Error("the way back to a release without v1 is open")
	}
	s.start(ctx, t, s.earlier, s.was, s.was)
	for _, r := range before {
		if r.StorageHash == "" {
			continue
		}
		name := r.Name + "." + r.Version + "." + r.Group
		if _, err := s.try(ctx, "", "get", "--all-namespaces", "-o", "name", name); err != nil && !slices.Contains(moved, r.Group+"/"+r.Name) {
			t.Errorf("the old one does not read %s, and nobody said that it has moved: %v", name, err)
		}
	}
}

// back judges the way to the earlier release.
func (s *servers) back(committed bool, moved []string) error {
	release := func(v hullmark.Version) step.Release { return step.Release{Versions: hullmark.Versions{Kubernetes: v}} }
	return step.Back(release(s.is), release(s.was), committed, step.Moved{Storage: moved})
}

// The kubeadms of both releases write pods by what the other has left, and the programs of both take their flags.
func TestMinorRender(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 80*time.Minute)
	defer cancel()
	earlier, was, err := testenv.EarlierPrograms(ctx)
	if err != nil {
		t.Fatal(err)
	}
	now, err := testenv.Programs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	is, err := hullmark.ParseVersion(kubeadm.Version)
	if err != nil {
		t.Fatal(err)
	}
	d := newDisk(ctx, t, filepath.Join(earlier, "kubeadm"), was)
	check := func(what, bin string, runs, acts hullmark.Version, programs ...string) {
		t.Helper()
		d.render(ctx, t, filepath.Join(bin, "kubeadm"), runs, acts)
		r, err := kubeadm.ReadRendered(d.read)
		if err != nil || r.Kubernetes != runs || !r.Acts.SameLine(acts) || r.Mixed {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		flags := commands(t, d.pods)
		maps.DeleteFunc(flags, func(program string, _ []string) bool { return !slices.Contains(programs, program) })
		if _, err := run.CheckFlags(ctx, bin, flags); err != nil || len(flags) != len(programs) {
			t.Errorf("%s: %v; asked %d programs", what, err, len(flags))
		}
	}
	all := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"}
	check("the new one, on trial", now, is, was, all...)
	check("the old one, back", earlier, was, was, "kube-apiserver")
	check("the new one, on trial again", now, is, was, all...)
	check("the new one, committed", now, is, is, all...)
}

// disk is what of a control plane's disk kubeadm reads and writes.
type disk struct {
	pods    map[string][]byte
	cluster []byte
	patches string
}

// newDisk is one that a kubeadm has begun.
func newDisk(ctx context.Context, t *testing.T, program string, v hullmark.Version) *disk {
	t.Helper()
	patches, err := filepath.Abs("../../tools/kubernetes/patches")
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{patches: patches}
	documents := d.here([]byte(strings.ReplaceAll(string(firstDocuments(t)), kubeadm.Version, v.String())))
	stored, err := run.WouldStore(ctx, program, documents)
	if err != nil {
		t.Fatal(err)
	}
	d.cluster = stored.ClusterConfiguration
	if d.pods, err = run.Render(ctx, program, t.TempDir(), documents); err != nil {
		t.Fatal(err)
	}
	return d
}

// here names the patches where they are in the checkout.
func (d *disk) here(documents []byte) []byte {
	return []byte(strings.ReplaceAll(string(documents), kubeadm.PatchesDir, d.patches))
}

func (d *disk) read(name string) ([]byte, error) {
	if text, ok := d.pods[name]; ok {
		return text, nil
	}
	return nil, os.ErrNotExist
}

func (d *disk) render(ctx context.Context, t *testing.T, program string, runs, acts hullmark.Version) {
	t.Helper()
	documents, err := kubeadm.Rendering{NodeName: "one", Version: runs, Acts: acts, ClusterConfiguration: d.cluster, Read: d.read}.Documents()
	if err != nil {
		t.Fatal(err)
	}
	if d.pods, err = run.Render(ctx, program, t.TempDir(), d.here(documents)); err != nil {
		t.Fatal(err)
	}
}
