package run

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// answering is an API server that has these pages.
func answering(t *testing.T, pages map[string]string) Access {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprint(w, page)
	}))
	t.Cleanup(server.Close)
	return administrator(t, server)
}

func TestServerVersion(t *testing.T) {
	for page, want := range map[string]string{
		`{"major":"1","minor":"36","gitVersion":"v1.36.3","emulationMajor":"1","emulationMinor":"35"}`: "v1.36.3 as v1.35.0",
		`{"gitVersion":"v1.36.3","emulationMajor":"1","emulationMinor":"36"}`:                          "v1.36.3 as v1.36.3",
		`{"gitVersion":"v1.36.3","emulationMajor":"1","emulationMinor":"x"}`:                           "want the form",
		`{"gitVersion":"v1.30.1"}`:      "v1.30.1 as v1.30.1",
		`{"gitVersion":"v1.36.3+k3s1"}`: "version",
		`[]`:                            "API server",
	} {
		got, err := ServerVersion(t.Context(), answering(t, map[string]string{"/version": page}))
		if said := fmt.Sprintf("%v as %v", got.Version, got.Acts); said != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %s, %v", page, said, err)
		}
	}
}

// Only what the server has itself counts: not what a definition of custom resources or another server adds, nor what another control
// plane of another version has.
func TestResources(t *testing.T) {
	const services = `{"items":[
		{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"onstart"}},"spec":{"version":"v1"}},
		{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"onstart"}},"spec":{"group":"apps","version":"v1"}},
		{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"onstart"}},"spec":{"group":"apps","version":"v2"}},
		{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"true"}},"spec":{"group":"custom.io","version":"v1"}},
		{"metadata":{},"spec":{"group":"metrics.k8s.io","version":"v1","service":{"name":"metrics"}}}]}`
	pages := map[string]string{
		"/apis/apiregistration.k8s.io/v1/apiservices": services, "/apis/apiregistration.k8s.io/v1": `{"resources":[]}`,
		"/api/v1":       `{"resources":[{"name":"pods","kind":"Pod","storageVersionHash":"xPOwRZ+Yhw8="},{"name":"bindings","kind":"Binding"}]}`,
		"/apis/apps/v1": `{"resources":[{"name":"deployments","kind":"Deployment","storageVersionHash":"8aSe+NMegvE="}]}`,
	}
	got, err := Resources(t.Context(), answering(t, pages))
	want := []step.Resource{
		{Version: "v1", Kind: "Pod", Name: "pods", StorageHash: "xPOwRZ+Yhw8="},
		{Version: "v1", Kind: "Binding", Name: "bindings"},
		{Group: "apps", Version: "v1", Kind: "Deployment", Name: "deployments", StorageHash: "8aSe+NMegvE="},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	delete(pages, "/apis/apiregistration.k8s.io/v1/apiservices")
	if _, err := Resources(t.Context(), answering(t, pages)); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no list of groups: %v", err)
	}
}

func TestRequestedAPIs(t *testing.T) {
	access := answering(t, map[string]string{"/metrics": "apiserver_requested_deprecated_apis{group=\"\",removed_release=\"1.40\",resource=\"b\",subresource=\"\",version=\"v1\"} 1\n"})
	got, err := RequestedAPIs(t.Context(), access)
	if err != nil || len(got) != 1 || got[0].String() != "v1/b" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := RequestedAPIs(t.Context(), Access{Kubeconfig: "k", Read: func(string) ([]byte, error) { return nil, fs.ErrNotExist }}); err == nil {
		t.Error("asked without a kubeconfig")
	}
}

// Control planes and kubelets are told as their Nodes say them; one whose API server does not answer, at the address that its Node has, acts as
// nobody knows what.
func TestPlanesAndKubelets(t *testing.T) {
	page := `{"items":[{"metadata":{"name":"a"},"status":{"nodeInfo":{"kubeletVersion":"v1.36.3"},"addresses":[{"type":"Hostname","address":"a"},{"type":"InternalIP","address":"127.255.255.254"}]}},{"metadata":{"name":"b"}}]}`
	access := answering(t, map[string]string{"/api/v1/nodes": page})
	planes, err := Planes(t.Context(), access)
	if want := []step.Plane{{Node: "a", Version: hullmark.Version{Major: 1, Minor: 36, Patch: 3}}, {Node: "b"}}; err != nil || !slices.Equal(planes, want) {
		t.Errorf("got %v, %v", planes, err)
	}
	kubelets, err := Kubelets(t.Context(), access)
	if want := []step.Seen{{Node: "a", Version: hullmark.Version{Major: 1, Minor: 36, Patch: 3}}, {Node: "b"}}; err != nil || !slices.Equal(kubelets, want) {
		t.Errorf("got %v, %v", kubelets, err)
	}
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			_, _ = fmt.Fprint(w, `{"metadata":{"continue":"next"},"items":[{"metadata":{"name":"a"}}]}`)
		} else if r.URL.Query().Get("continue") == "next" {
			_, _ = fmt.Fprint(w, `{"items":[{"metadata":{"name":"b"}}]}`)
		}
	}))
	defer server.Close()
	if kubelets, err := Kubelets(t.Context(), administrator(t, server)); err != nil || len(kubelets) != 2 || kubelets[1].Node != "b" {
		t.Errorf("over two pages: %v, %v", kubelets, err)
	}
}
