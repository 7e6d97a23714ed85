//go:build long

package addons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// env is the API of all tests; each has a group of custom resources and a namespace of its own.
var env *testenv.Environment

func TestMain(m *testing.M) {
	code, err := withAPI(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withAPI(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "testenv-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The bundle may have to be compiled.
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Minute)
	defer cancel()
	if env, err = testenv.Start(ctx, dir); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	if err := env.Apply(ctx, registry.Manifest()); err != nil {
		return 1, err
	}
	// Whatever is Hullmark's own is as this release has it, so that no test but those of that changes it.
	file, err := cluster.Create(filepath.Join(dir, "cluster"), hullmark.NewSecret([]byte("passphrase")), env.Cluster, cheap)
	if err != nil {
		return 1, err
	}
	config, err := env.Config("hullmark-operator", "kubeadm:cluster-admins")
	if err != nil {
		return 1, err
	}
	own := New(Options{Config: config, File: file, Saved: filepath.Join(dir, "saved"), Timeout: time.Minute, Wait: time.Minute})
	if _, err := own.Apply(ctx, nil); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// patience is how long a site waits for what does not get ready.
const patience = 20 * time.Second

// cheap is the work factor of passphrases that guard nothing.
const cheap = 4

// site is an operator with a document and charts, at the API of all tests.
type site struct {
	*Addons
	group, namespace string
	wire             *wire
	said             []string
	mutex            sync.Mutex
}

// wire leads an operator's requests to the API, until it is cut.
type wire struct {
	mutex sync.Mutex
	// left is how many more requests that change something pass; negative is any number.
	left int
	// passed are those that passed, and before is called with each before it does.
	passed []string
	before func(*http.Request)
}

var errCut = errors.New("the power went off")

func (w *wire) passes(r *http.Request) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if r.Method == http.MethodGet {
		return w.left != 0
	}
	if w.left == 0 {
		return false
	}
	if strings.Contains(r.URL.RawQuery, "dryRun") {
		return true
	}
	w.left--
	w.passed = append(w.passed, r.Method+" "+r.URL.Path)
	if w.before != nil {
		w.before(r)
	}
	return true
}

type cable struct {
	wire *wire
	next http.RoundTripper
}

func (c cable) RoundTrip(r *http.Request) (*http.Response, error) {
	if !c.wire.passes(r) {
		return nil, errCut
	}
	return c.next.RoundTrip(r)
}

// newSite returns an operator whose custom resources are of a group that is named after the test.
func newSite(t *testing.T) *site {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	s := &site{group: name + ".example", namespace: name}
	config, err := env.Config("hullmark-operator", "kubeadm:cluster-admins")
	if err != nil {
		t.Fatal(err)
	}
	s.wire = &wire{left: -1}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return cable{s.wire, next} })
	dir := t.TempDir()
	file, err := cluster.Create(filepath.Join(dir, "cluster"), hullmark.NewSecret([]byte("passphrase")), env.Cluster, cheap)
	if err != nil {
		t.Fatal(err)
	}
	say := func(line string) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		s.said = append(s.said, line)
		t.Log(line)
	}
	s.Addons = New(Options{
		Config: config, File: file, Saved: filepath.Join(dir, "cluster.addons"), Folder: dir, Timeout: patience,
		Progress: say, Done: say,
	})
	s.settle = time.Second / 10 // There is one API server.
	for _, version := range []string{"1", "2", "3"} {
		s.copyChart(t, "demo-"+version)
	}
	return s
}

// copyChart copies a chart of testdata into the site's folder, with the site's group.
func (s *site) copyChart(t *testing.T, name string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("testdata"), name, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(s.Folder, path), 0o700))
		}
		text, err := os.ReadFile(filepath.Join("testdata", path))
		if err != nil {
			return err
		}
		to := filepath.Join(s.Folder, path)
		return errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, []byte(strings.ReplaceAll(string(text), "demo.example", s.group)), 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// demo is the site's chart in a version.
func (s *site) demo(version int, values map[string]any) []render.Addon {
	return []render.Addon{{Name: "demo", Namespace: s.namespace, Chart: fmt.Sprintf("demo-%d", version), Values: values}}
}

func (s *site) apply(t *testing.T, wanted []render.Addon) *Plan {
	t.Helper()
	plan, err := s.Apply(t.Context(), wanted)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func (s *site) rollback(t *testing.T, file string) Restored {
	t.Helper()
	restored, err := s.Rollback(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range restored.Problems {
		t.Error(problem)
	}
	return restored
}

// direct is a client of the API that no wire leads to.
func direct(t *testing.T) *client {
	t.Helper()
	config, err := env.Config("user")
	if err == nil {
		config, err = env.Config("user", "system:masters")
	}
	if err != nil {
		t.Fatal(err)
	}
	return clientOf(t, config)
}

func clientOf(t *testing.T, config *rest.Config) *client {
	t.Helper()
	c, err := connect(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *site) widgets(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: s.group, Version: version, Resource: "widgets"}
}

// widget creates a custom resource of a user's, with all that there is to lose.
func (s *site) widget(t *testing.T, c *client, name string, change func(*object)) *object {
	t.Helper()
	o := &object{Object: map[string]any{"spec": map[string]any{"size": int64(7), "colour": "red"}, "status": map[string]any{"seen": int64(3)}}}
	o.SetAPIVersion(s.group + "/v1")
	o.SetKind("Widget")
	o.SetName(name)
	o.SetLabels(map[string]string{"of": "mine"})
	o.SetAnnotations(map[string]string{"note": name})
	if change != nil {
		change(o)
	}
	to := c.objects.Resource(s.widgets("v1")).Namespace(s.namespace)
	made, err := to.Create(t.Context(), o, metav1.CreateOptions{FieldManager: "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	made.Object["status"] = o.Object["status"]
	if made, err = to.UpdateStatus(t.Context(), made, metav1.UpdateOptions{FieldManager: "a-controller"}); err != nil {
		t.Fatal(err)
	}
	return made
}

// picture is all that the site has in the cluster: each object's content, its managers and, of custom resources, its status.
func (s *site) picture(t *testing.T, c *client) map[string]any {
	t.Helper()
	c.refresh()
	all := map[string]any{}
	add := func(o *object, withStatus bool) {
		if o.GetName() == "kube-root-ca.crt" || o.GetKind() == "ServiceAccount" && o.GetName() == "default" { // Kubernetes makes them.
			return
		}
		taken := content(o, withStatus)
		for i, owner := range o.GetOwnerReferences() { // by their names: identities cannot come back
			owners, _, _ := unstructured.NestedSlice(taken, "metadata", "ownerReferences")
			owners[i].(map[string]any)["uid"] = owner.Name
			_ = unstructured.SetNestedSlice(taken, owners, "metadata", "ownerReferences")
		}
		fields := o.GetManagedFields()
		managers := map[string]any{}
		for _, f := range fields {
			if f.Manager == "kube-controller-manager" {
				continue
			}
			managers[fmt.Sprint(f.Manager, " ", f.Operation, " ", f.Subresource, " ", f.APIVersion)] = f.FieldsV1.GetRawString()
		}
		taken["managers"] = managers
		all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = taken
	}
	for _, r := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "secrets"},
		{Version: "v1", Resource: "services"},
		{Version: "v1", Resource: "serviceaccounts"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "batch", Version: "v1", Resource: "jobs"},
	} {
		list, err := c.objects.Resource(r).Namespace(s.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			add(&list.Items[i], false)
		}
	}
	crd, err := c.objects.Resource(definitions).Get(t.Context(), "widgets."+s.group, metav1.GetOptions{})
	if err != nil {
		return all
	}
	add(crd, false)
	is, err := defined(crd)
	if err != nil {
		t.Fatal(err)
	}
	all["stored"] = is.Status.StoredVersions
	if err := c.each(t.Context(), is.resource(is.read()), func(o *object) error { add(o, true); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// wantPicture compares what there is with what there was, field by field.
func (s *site) wantPicture(t *testing.T, c *client, want map[string]any) {
	t.Helper()
	s.wantPictures(t, s.picture(t, c), want)
}

func plain(t *testing.T, v any) (out map[string]any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// latest is the newest saved state.
func (s *site) latest(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Saved, "*"+savedEnding))
	if err != nil || len(files) == 0 {
		t.Fatal("nothing is saved", err)
	}
	return files[len(files)-1]
}

// before is the saved state that is n older than the newest.
func (s *site) before(t *testing.T, n int) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Saved, "*"+savedEnding))
	if err != nil || len(files) <= n {
		t.Fatal("not so many are saved", err)
	}
	return files[len(files)-1-n]
}

// wantPictures compares two pictures.
func (s *site) wantPictures(t *testing.T, got, want map[string]any) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	for _, path := range differences(plain(t, want), plain(t, got)) {
		t.Errorf("not as it was: %s", path)
	}
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s:\nwas %v\nis  %v", name, want[name], got[name])
		}
	}
}
