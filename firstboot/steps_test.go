package firstboot

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/step"
)

const (
	oldRelease = "v1.35.4"
	newRelease = "v1.36.3"
	podFlags   = "--advertise-address=192.0.2.7, --secure-port=6443"
)

func versions(t *testing.T, kubernetes string) hullmark.Versions {
	t.Helper()
	v, err := hullmark.ParseVersion(kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	return hullmark.Versions{Kubernetes: v, Etcd: hullmark.Version{Major: 3, Minor: 6, Patch: 8}}
}

// running is a stage whose image has a release, with a disk on which another wrote the static pods.
func running(t *testing.T, image string, pods map[string][]byte) *stage {
	t.Helper()
	s, _ := returning(t, time.Now().Add(year))
	s.agent.Versions = versions(t, image)
	s.put(t, pods)
	return s
}

// does lets the node come back, and wants it to be Ready, or to fail with a code.
func (s *stage) does(t *testing.T, role hullmark.Role, code string) *wire.Progress {
	t.Helper()
	last := s.again(t, role, "192.0.2.7:6443")
	if code == "" && !last.GetReady() || last.GetFailed().GetCode() != code {
		t.Fatalf("last = %v, want %q", last, code)
	}
	if started := s.machine.Has("start " + kubeletUnit); started != (code == "") {
		t.Errorf("the kubelet was started: %v", started)
	}
	return last
}

func (s *stage) rendered(t *testing.T) kubeadm.Rendered {
	t.Helper()
	r, err := kubeadm.ReadRendered(s.agent.readState)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A new release's pods are written before its kubelet starts, and behave as the release before; that one's are written again when it
// comes back. What one release wrote another one starts with.
func TestPodsFollowTheRelease(t *testing.T) {
	s, do := steps(t, newRelease)
	s.put(t, agenttest.Pods(oldRelease, podFlags))
	for i, c := range []struct{ image, acts string }{
		{newRelease, "v1.35.0"},  // tried
		{oldRelease, oldRelease}, // and given up
		{newRelease, "v1.35.0"},  // tried once more
		{newRelease, "v1.35.0"},  // restarted
		{"v1.36.4", "v1.35.0"},   // a patch before it was committed
	} {
		s.agent.Versions = versions(t, c.image)
		began := len(s.cluster.Tasks())
		if err := do(hullmark.ControlPlane); err != nil {
			t.Fatal(err)
		}
		if r := s.rendered(t); r.Kubernetes.String() != c.image || r.Acts.String() != c.acts || r.Mixed {
			t.Errorf("%d: %s wrote %+v", i, c.image, r)
		}
		if did := s.cluster.Tasks()[began:]; (i == 3) != !slices.ContainsFunc(did, func(task string) bool { return strings.HasPrefix(task, "render") }) {
			t.Errorf("%d: did %q", i, did)
		}
	}
}

// deaf is the stream of a verifier that hears nothing of progress.
type deaf struct{ stream }

func (deaf) Send(*wire.FromNode) error { return nil }

// steps returns a function that does what comes before the kubelet, without a boot, on a disk that is open.
func steps(t *testing.T, image string) (s *stage, do func(role hullmark.Role) error) {
	t.Helper()
	s = newStage(t)
	s.agent.Versions = versions(t, image)
	s.keep(clusterNote, string(agenttest.ClusterConfiguration(oldRelease)))
	s.open(t)
	return s, func(role hullmark.Role) error {
		return stepping{&finishing{conversation: &conversation{agent: s.agent, stream: deaf{}}, proceed: &wire.Proceed{NodeName: "node-1", Role: string(role)}}}.run(t.Context())
	}
}

// A cut between two of the pods, any of them written, leads to the same as none.
func TestPodsAfterAPowerCut(t *testing.T) {
	s, do := steps(t, newRelease)
	names := kubeadm.StaticPods()
	for written := range 1 << len(names) {
		disk := agenttest.Pods(oldRelease, podFlags)
		for i, name := range names {
			if written&(1<<i) != 0 {
				disk[name] = agenttest.Pods(newRelease, podFlags+", --emulated-version=1.35")[name]
			}
		}
		s.put(t, disk)
		if err := do(hullmark.ControlPlane); err != nil {
			t.Fatal(err)
		}
		if r := s.rendered(t); r.Kubernetes.String() != newRelease || r.Acts.Line() != "1.35" || r.Mixed {
			t.Errorf("%04b written: %+v", written, r)
		}
	}
}

func TestReleasesThatDoNotFollow(t *testing.T) {
	s, do := steps(t, newRelease)
	for name, c := range map[string]struct {
		image, pods, kubelet string
		role                 hullmark.Role
		refused              error
		code                 string
	}{
		"two minor releases":                 {"v1.37.0", oldRelease, "", hullmark.ControlPlane, nil, "kubernetes-step"},
		"back, once it behaves as itself":    {oldRelease, newRelease, "", hullmark.ControlPlane, nil, "rollback-refused"},
		"back, with a later kubelet's":       {oldRelease, oldRelease, newRelease, hullmark.ControlPlane, nil, "rollback-refused"},
		"a worker back, with a later one's":  {oldRelease, "", newRelease, hullmark.Worker, nil, "rollback-refused"},
		"a worker back, while it is written": {oldRelease, "", newRelease + beginsNote, hullmark.Worker, nil, "rollback-refused"},
		"a flag that is gone":                {newRelease, oldRelease, oldRelease, hullmark.ControlPlane, &hullmark.Condition{Code: "flags-removed", Title: "no", Next: "n"}, "flags-removed"},
		"a worker's flag that is gone":       {newRelease, "", oldRelease, hullmark.Worker, &hullmark.Condition{Code: "flags-removed", Title: "no", Next: "n"}, "flags-removed"},
		"a worker's patch back":              {"v1.36.2", "", newRelease, hullmark.Worker, nil, ""},
		"a worker's next":                    {newRelease, "", oldRelease, hullmark.Worker, nil, ""},
		"what it wrote itself":               {newRelease, newRelease, "", hullmark.ControlPlane, nil, ""},
	} {
		s.agent.Versions = versions(t, c.image)
		if err := s.agent.kept.write(kubeletNote, []byte(c.kubelet)); err != nil {
			t.Fatal(err)
		}
		s.put(t, map[string][]byte{kubeadm.FlagsFile: []byte("KUBELET_KUBEADM_ARGS=\"--v=2\"\n")})
		if c.pods != "" {
			s.put(t, agenttest.Pods(c.pods, podFlags))
		}
		s.cluster.Change(func() { s.cluster.Refused = c.refused })
		err := do(c.role)
		wantCode(t, name, err, c.code)
		if c.pods != "" && err != nil && s.rendered(t).Kubernetes.String() != c.pods {
			t.Errorf("%s: the pods were written all the same", name)
		}
	}
}

// A release that does not follow on the disk's is not started.
func TestKubeletDoesNotStartAfterARefusal(t *testing.T) {
	s := running(t, "v1.37.0", agenttest.Pods(oldRelease, podFlags))
	s.does(t, hullmark.ControlPlane, "kubernetes-step")
}

// A disk of a time before the cluster's configuration was kept: its pods stay, and the node says so. Once it is Ready, that is kept.
func TestPodsOfAnEarlierTime(t *testing.T) {
	s := running(t, newRelease, agenttest.Pods(oldRelease, podFlags))
	s.does(t, hullmark.ControlPlane, "")
	if d := s.document(t); d.Condition == nil || d.Condition.Code != "static-pods-old" {
		t.Errorf("condition %v", d.Condition)
	}
	if r := s.rendered(t); r.Kubernetes.String() != oldRelease {
		t.Errorf("%+v", r)
	}
	s.cluster.Recorded = oldRelease
	u := &upgrader{Agent: s.agent}
	if task, err := u.turn(t.Context()); task != step.TaskWait || err != nil {
		t.Errorf("%s, %v", task, err)
	}
	if kept, err := s.agent.kept.read(clusterNote); err != nil || !strings.Contains(string(kept), oldRelease) {
		t.Errorf("%s, %v", kept, err)
	}
}

// ready is a stage that came to Ready.
func ready(t *testing.T, role hullmark.Role, image string) (*stage, *upgrader) {
	t.Helper()
	s, do := steps(t, image)
	s.put(t, agenttest.Pods(oldRelease, podFlags))
	s.put(t, map[string][]byte{kubeadm.KubeletConfig: []byte("old")})
	if err := s.agent.kept.write(kubeletNote, []byte(oldRelease)); err != nil {
		t.Fatal(err)
	}
	s.cluster.Recorded, s.cluster.Config, s.cluster.Stale = oldRelease, "new", true
	now := versions(t, image).Kubernetes
	acts := hullmark.Version{Major: 1, Minor: 35}
	s.cluster.ControlPlanes, s.cluster.Nodes = []step.Plane{{Node: "node-1", Version: now, Acts: acts}}, []step.Seen{{Node: "node-1", Version: now}}
	if err := do(role); err != nil {
		t.Fatal(err)
	}
	if err := s.agent.writeMark(mark{Name: "node-1", Role: role}); err != nil {
		t.Fatal(err)
	}
	s.agent.Status.Finish()
	return s, &upgrader{Agent: s.agent}
}

// turns lets the node do what is left, and returns what it did.
func (s *stage) turns(t *testing.T, u *upgrader) []string {
	t.Helper()
	began := len(s.cluster.Tasks())
	for range 10 {
		task, err := u.turn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if task == step.TaskAct { // The kubelet starts what was written.
			s.cluster.Change(func() { s.cluster.ControlPlanes[0].Acts = s.rendered(t).Acts })
		}
		if task == step.TaskNone || task == step.TaskWait {
			break
		}
	}
	return s.cluster.Tasks()[began:]
}

func TestStepEndsOnceCommitted(t *testing.T) {
	s, u := ready(t, hullmark.ControlPlane, newRelease)
	updater{s.agent}.changeUpdate(func(u *hullmark.UpdateStatus) { u.Running, u.Default = "b", "a" })
	if did := s.turns(t, u); len(did) > 0 || s.rendered(t).Acts.Line() != "1.35" {
		t.Fatalf("on trial it did %q", did)
	}
	if text, err := s.agent.readState(kubeadm.KubeletConfig); err != nil || string(text) != "old" {
		t.Fatalf("on trial the kubelet's configuration is %q, %v", text, err)
	}
	updater{s.agent}.changeUpdate(func(u *hullmark.UpdateStatus) { u.Default = "b" })
	want := []string{"render v1.36.3 as 1.36", "record v1.36.3", "kubelet", "dns v1.36.3"}
	if did := s.turns(t, u); !slices.Equal(did, want) {
		t.Errorf("it did %q, want %q", did, want)
	}
	text, err := s.agent.readState(kubeadm.KubeletConfig)
	if err != nil || string(text) != "new" || !s.machine.Has("restart "+kubeletUnit) {
		t.Errorf("the kubelet's configuration is %q, %v; the machine did %q", text, err, s.machine.Did())
	}
	if wrote, err := (written{s.agent}).kubeletRelease(); err != nil || wrote.String() != newRelease {
		t.Errorf("noted %v, %v", wrote, err)
	}
	if kept, err := s.agent.kept.read(clusterNote); err != nil || !strings.Contains(string(kept), newRelease) {
		t.Errorf("kept %s, %v", kept, err)
	}
	if did := s.turns(t, u); len(did) > 0 {
		t.Errorf("then it did %q", did)
	}
}

// The kubelet's configuration is of either release between two notes: a cut there is mended by writing it again, and no earlier release
// starts meanwhile.
func TestKubeletConfigurationCutShort(t *testing.T) {
	s, u := ready(t, hullmark.Worker, newRelease)
	s.cluster.Change(func() { s.cluster.Recorded = newRelease })
	s.machine.Fail = "restart " + kubeletUnit
	if task, err := u.turn(t.Context()); task != step.TaskKubelet || err == nil {
		t.Fatalf("%s, %v", task, err)
	}
	if wrote, err := (written{s.agent}).kubeletRelease(); err != nil || wrote.String() != newRelease {
		t.Errorf("noted %v, %v", wrote, err)
	}
	s.machine.Fail = ""
	if did := s.turns(t, u); !slices.Equal(did, []string{"kubelet"}) {
		t.Errorf("then it did %q", did)
	}
	if text, err := s.agent.note(kubeletNote); err != nil || text != newRelease {
		t.Errorf("noted %q, %v", text, err)
	}
}

// What fails is shown, tried again, and forgotten once it is done.
func TestStepIsTriedAgain(t *testing.T) {
	s, u := ready(t, hullmark.ControlPlane, newRelease)
	s.agent.Timing.Upgrade = time.Millisecond
	s.cluster.Change(func() { s.cluster.Down = errors.New("the API is down") })
	go u.run(t.Context())
	condition := func() string {
		if d := s.document(t); d.Condition != nil {
			return d.Condition.Code
		}
		return ""
	}
	await(t, func() bool { return condition() == codeUnfinished })
	s.cluster.Change(func() { s.cluster.Down = nil; s.cluster.ControlPlanes[0].Acts = versions(t, newRelease).Kubernetes })
	await(t, func() bool { return condition() == "" && slices.Contains(s.cluster.Tasks(), "dns v1.36.3") })
}

// await waits until something is so.
func await(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain")
		}
	}
}

// A node that joins, or is the first, has its release's kubelet configuration from the beginning.
func TestNewNodesNoteTheirRelease(t *testing.T) {
	s := newStage(t)
	s.agent.Versions = versions(t, newRelease)
	address, _ := s.serve(t)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	c.ticket(c.admit(s))
	c.receive()
	c.proceed()
	if _, last := c.rest(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if wrote, err := (written{s.agent}).kubeletRelease(); err != nil || wrote.String() != newRelease {
		t.Errorf("the first: %v, %v", wrote, err)
	}
	s = newStage(t)
	s.agent.Versions = versions(t, newRelease)
	service := s.service(t)
	s.dials(t, service.address)
	s.serve(t)
	j := service.accept()
	j.ticket(j.admit(s))
	j.receive()
	j.proceedWith(worker())
	if _, last := j.finish(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if wrote, err := (written{s.agent}).kubeletRelease(); err != nil || wrote.String() != newRelease {
		t.Errorf("one that joins: %v, %v", wrote, err)
	}
}

// A release is judged before it is staged, and before it is tried: by its own versions, and on a Ready node by those beside it.
func TestReleasesAreJudgedBefore(t *testing.T) {
	s, _ := steps(t, oldRelease)
	version := func(text string) hullmark.Version { return versions(t, text).Kubernetes }
	for name, c := range map[string]struct {
		role     hullmark.Role
		to       string
		ready    bool
		planes   []step.Plane
		kubelets []step.Seen
		recorded string
		code     string
	}{
		"the next":                          {hullmark.ControlPlane, newRelease, true, nil, nil, oldRelease, ""},
		"one after that":                    {hullmark.ControlPlane, "v1.37.0", false, nil, nil, "", "kubernetes-step"},
		"beside an older control plane":     {hullmark.ControlPlane, newRelease, true, []step.Plane{{Node: "node-2", Version: version("v1.34.9")}}, nil, oldRelease, "version-skew"},
		"that nobody asks, not being Ready": {hullmark.ControlPlane, newRelease, false, []step.Plane{{Node: "node-2", Version: version("v1.34.9")}}, nil, oldRelease, ""},
		"its own Node does not count":       {hullmark.ControlPlane, newRelease, true, []step.Plane{{Node: "node-1"}}, []step.Seen{{Node: "node-1"}}, oldRelease, ""},
		"beside an older kubelet":           {hullmark.ControlPlane, newRelease, true, nil, []step.Seen{{Node: "w", Version: version("v1.32.9")}}, oldRelease, "version-skew"},
		"a worker before the control plane": {hullmark.Worker, newRelease, true, nil, nil, oldRelease, "version-skew"},
		"a worker after it":                 {hullmark.Worker, newRelease, true, nil, nil, newRelease, ""},
	} {
		s.agent.kept.setRole(c.role)
		if err := os.RemoveAll(filepath.Join(s.agent.RunDir, readyMark)); err != nil {
			t.Fatal(err)
		}
		if c.ready {
			if err := s.agent.writeMark(mark{Name: "node-1", Role: c.role}); err != nil {
				t.Fatal(err)
			}
		}
		s.cluster.Change(func() {
			s.cluster.ControlPlanes, s.cluster.Nodes, s.cluster.Recorded = c.planes, c.kubelets, c.recorded
		})
		var to release
		to.Image.Versions = versions(t, c.to)
		wantCode(t, name, stepJudge{s.agent}.forward(t.Context(), to), c.code)
	}
	var to release
	to.Image.Versions = versions(t, "v1.35.1")
	wantCode(t, "a patch back", stepJudge{s.agent}.back(to), "")
	if err := s.agent.kept.write(kubeletNote, []byte(newRelease)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "back behind the kubelet's configuration", stepJudge{s.agent}.back(to), "rollback-refused")
	s.agent.Versions = hullmark.Versions{}
	wantCode(t, "neither says a version", stepJudge{s.agent}.forward(t.Context(), release{}), "")
	wantCode(t, "only one does", stepJudge{s.agent}.forward(t.Context(), to), "version-unknown")
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	var c *hullmark.Condition
	if code == "" && err != nil || code != "" && (!errors.As(err, &c) || c.Code != code) {
		t.Errorf("%s: %v, want %q", what, err, code)
	}
}
