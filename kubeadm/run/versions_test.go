package run

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

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
		`{"major":"1","minor":"36","gitVersion":"v1.36.3","emulationMajor":"1","emulationMinor":"35"}`: "v1.36.3 as 1.35",
		`{"gitVersion":"v1.30.1"}`:      "v1.30.1 as 1.30",
		`{"gitVersion":"v1.36.3+k3s1"}`: "version",
		`[]`:                            "API server",
	} {
		got, err := ServerVersion(t.Context(), answering(t, map[string]string{"/version": page}))
		if said := fmt.Sprintf("%v as %s", got.Version, got.Emulates); said != want && (err == nil || !strings.Contains(err.Error(), want)) {
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
