package upgradetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// beat is how often a live kubelet says how it is; Kubernetes holds one to be gone that is silent for 50 s.
const beat = 10 * time.Second

// Live plays machines beside a real API: their kubelets, which show Nodes and end pods, their agents, which follow directions, the join
// services that keep their records, and the scheduler.
type Live struct {
	// Watch, if set, is called with all machines after each round, under their lock.
	Watch func(map[string]*Machine)
	// Ask, if set, tells a real join service what a machine's slots hold, and returns what it is directed to do: then no join service
	// is played.
	Ask func(context.Context, *Machine) (hullmark.UpdateDirection, error)

	client   *http.Client
	host     string
	mutex    sync.Mutex
	machines map[string]*Machine
	shown    map[string]shown
}

// shown is what was said last of a machine.
type shown struct {
	ready  bool
	bootID string
	at     time.Time
	record string
}

// NewLive plays machines as an administrator of the API.
func NewLive(config *rest.Config) (*Live, error) {
	client, err := rest.HTTPClientFor(config)
	return &Live{client: client, host: config.Host, machines: map[string]*Machine{}, shown: map[string]shown{}}, err
}

// QuickPace is that of machines for which somebody waits.
func QuickPace() Pace {
	return Pace{Ask: time.Second, Stage: 2 * time.Second, Boot: 4 * time.Second, Trial: 6 * time.Second}
}

// Add registers a machine's node, at an address, and its record.
func (l *Live) Add(ctx context.Context, m *Machine, address string) error {
	m.Pace = QuickPace()
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: map[string]string{}}}
	if m.Role == hullmark.ControlPlane {
		node.Labels["node-role.kubernetes.io/control-plane"] = ""
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	if err := l.Call(ctx, http.MethodPost, "/api/v1/nodes", node, nil); err != nil {
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.machines[m.Name] = m
	return l.say(ctx, m, time.Now())
}

// Remove forgets a machine, as `hullmark node remove` does.
func (l *Live) Remove(ctx context.Context, name string) error {
	l.mutex.Lock()
	m := l.machines[name]
	delete(l.machines, name)
	delete(l.shown, name)
	l.mutex.Unlock()
	return errors.Join(
		l.Call(ctx, http.MethodDelete, "/api/v1/nodes/"+name, nil, nil),
		l.Call(ctx, http.MethodDelete, objects+"/"+registry.MachineObject(m.EKID), nil, nil))
}

// Change changes a machine.
func (l *Live) Change(name string, change func(*Machine)) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	change(l.machines[name])
}

// Run plays until ctx ends. An API server that does not answer is asked again.
func (l *Live) Run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = l.round(ctx) // The next one makes up for it.
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (l *Live) round(ctx context.Context) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := time.Now()
	for _, m := range l.machines {
		d, err := l.direction(ctx, m, now)
		if err != nil {
			return err
		}
		m.Step(now, d)
		if err := l.say(ctx, m, now); err != nil {
			return err
		}
	}
	if l.Watch != nil {
		l.Watch(l.machines)
	}
	return l.pods(ctx)
}

// direction is what a machine is directed to do. One that asks nobody now, or that no service answers, hears of none.
func (l *Live) direction(ctx context.Context, m *Machine, now time.Time) (d hullmark.UpdateDirection, err error) {
	if l.Ask != nil {
		if m.Ready && !now.Before(m.asks) {
			d, err = l.Ask(ctx, m)
		}
		return d, err
	}
	var object corev1.ConfigMap
	switch err := l.Call(ctx, http.MethodGet, objects+"/"+registry.DirectionObject(m.EKID), nil, &object); {
	case errors.Is(err, errNotFound):
		return d, nil
	case err != nil:
		return d, err
	}
	return registry.ParseDirection(&object)
}

const objects = "/api/v1/namespaces/hullmark/configmaps"

// say shows a machine's Node and its record.
func (l *Live) say(ctx context.Context, m *Machine, now time.Time) error {
	last := l.shown[m.Name]
	if last.ready != m.Ready || last.bootID != m.BootID || m.Ready && now.Sub(last.at) > beat {
		status, since := corev1.ConditionFalse, metav1.NewTime(now)
		if m.Ready {
			status = corev1.ConditionTrue
		}
		patch := map[string]any{"status": map[string]any{
			"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "Played", LastHeartbeatTime: since, LastTransitionTime: since}},
			"nodeInfo":   map[string]string{"bootID": m.BootID, "kubeletVersion": "v1.36.3"},
		}}
		if err := l.Call(ctx, http.MethodPatch, "/api/v1/nodes/"+m.Name+"/status", patch, nil); err != nil {
			return err
		}
		last.ready, last.bootID, last.at = m.Ready, m.BootID, now
	}
	if l.Ask == nil {
		if err := l.record(ctx, m, now, &last); err != nil {
			return err
		}
	}
	l.shown[m.Name] = last
	return nil
}

// record keeps what a machine says of itself, as its join service does.
func (l *Live) record(ctx context.Context, m *Machine, now time.Time, last *shown) error {
	recorded := m.Recorded
	record := joinservice.Machine{
		EKID: m.EKID, Name: m.Name, Role: m.Role, Document: m.Document, Update: &recorded, State: joinservice.MachineReady, Seen: now.UTC().Truncate(time.Hour),
		Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM},
	}
	object := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
	if err := registry.PutMachine(object, record); err != nil {
		return err
	}
	if text := fmt.Sprint(object.Data); text != last.record {
		object.Labels = map[string]string{"app.kubernetes.io/managed-by": "hullmark", "app.kubernetes.io/component": "node"}
		err := l.Call(ctx, http.MethodPut, objects+"/"+object.Name, object, nil)
		if errors.Is(err, errNotFound) {
			err = l.Call(ctx, http.MethodPost, objects, object, nil)
		}
		if err != nil {
			return err
		}
		last.record = text
	}
	return nil
}

// pods binds pods to nodes that take them, shows that they run, and ends those that are to end.
func (l *Live) pods(ctx context.Context) error {
	var list corev1.PodList
	if err := l.Call(ctx, http.MethodGet, "/api/v1/pods", nil, &list); err != nil {
		return err
	}
	for _, p := range list.Items {
		path := "/api/v1/namespaces/" + p.Namespace + "/pods"
		node := l.machines[p.Spec.NodeName]
		var err error
		switch {
		case p.DeletionTimestamp != nil && node != nil && node.Ready:
			err = l.Call(ctx, http.MethodDelete, path+"/"+p.Name, &metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, nil)
		case p.Spec.NodeName == "":
			err = l.bind(ctx, p, path)
		case node != nil && node.Ready && p.Status.Phase != corev1.PodRunning:
			err = l.Call(ctx, http.MethodPatch, path+"/"+p.Name+"/status", map[string]any{"status": map[string]any{
				"phase": corev1.PodRunning, "conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			}}, nil)
		}
		if err != nil && !errors.Is(err, errNotFound) {
			return err
		}
	}
	return nil
}

// bind gives a pod to the first worker that takes pods.
func (l *Live) bind(ctx context.Context, p corev1.Pod, path string) error {
	var nodes corev1.NodeList
	if err := l.Call(ctx, http.MethodGet, "/api/v1/nodes", nil, &nodes); err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if m := l.machines[n.Name]; m != nil && m.Role == hullmark.Worker && m.Ready && !n.Spec.Unschedulable {
			return l.Call(ctx, http.MethodPost, path+"/"+p.Name+"/binding", &corev1.Binding{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"}, ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: n.Name},
			}, nil)
		}
	}
	return nil
}

var errNotFound = errors.New("not found")

// Call sends one request to the API, and reads its answer. A patch is a strategic merge patch.
func (l *Live) Call(ctx context.Context, method, path string, body, into any) error {
	var text []byte
	var err error
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, l.host+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	answer, err := l.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", method, path, errNotFound)
	case answer.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("%s %s: %s: %.500s", method, path, answer.Status, got)
	case into == nil:
		return nil
	}
	return json.Unmarshal(got, into)
}

// Deploy runs pods that a ReplicaSet makes anew, and of which a budget lets one go at a time.
func (l *Live) Deploy(ctx context.Context, replicas int) error {
	labels := map[string]any{"app": "web"}
	return errors.Join(
		l.Call(ctx, http.MethodPost, "/apis/apps/v1/namespaces/default/replicasets", map[string]any{
			"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{"name": "web"},
			"spec": map[string]any{"replicas": replicas, "selector": map[string]any{"matchLabels": labels}, "template": map[string]any{
				"metadata": map[string]any{"labels": labels}, "spec": map[string]any{"terminationGracePeriodSeconds": 1, "containers": []any{map[string]any{"name": "a", "image": "a"}}},
			}},
		}, nil),
		l.Call(ctx, http.MethodPost, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", map[string]any{
			"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": map[string]any{"name": "web"},
			"spec": map[string]any{"maxUnavailable": 1, "selector": map[string]any{"matchLabels": labels}},
		}, nil))
}
