package operate

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
)

const asked = `apiserver_requested_deprecated_apis{group="storage.k8s.io",removed_release="1.37",resource="volumeattributesclasses",subresource="",version="v1beta1"} 1
`

// A plan over a minor release is held against what clients ask of the API servers; one that stays in it asks nobody.
func TestPlanAsksForRemovedAPIs(t *testing.T) {
	present, same, next := hullmark.DocumentID{1}, hullmark.DocumentID{2}, hullmark.DocumentID{3}
	view := upgrade.View{
		Machines:  map[hullmark.EKID]upgrade.Machine{{1}: {Name: "one", Role: hullmark.ControlPlane, Document: present}},
		Documents: map[hullmark.DocumentID]measurements.Document{present: ofKubernetes(1), same: ofKubernetes(3), next: {}},
	}
	d := ofKubernetes(0)
	d.Image.Kubernetes.Minor++
	view.Documents[next] = d
	for name, test := range map[string]struct {
		to             hullmark.DocumentID
		metrics        string
		against, notes string
	}{
		"to another patch release": {same, "torn{", "", ""},
		"nobody asks":              {next, "other 1\n", "", ""},
		"somebody asks":            {next, asked, "clients ask for APIs that the release no longer has (expected none that Kubernetes 1.37 lacks, got storage.k8s.io/v1beta1/volumeattributesclasses)", ""},
		"it does not say":          {next, "apiserver_requested_deprecated_apis{torn", "", "it is not known whether clients ask for APIs that Kubernetes 1.37 no longer has: the API server of one at 127.0.0.1:"},
	} {
		plan := upgrade.Plan{Spec: upgrade.Spec{Documents: []hullmark.DocumentID{test.to}}}
		serving(t, test.metrics).checkRequestedAPIs(t.Context(), &plan, view)
		var against strings.Builder
		for _, c := range plan.Against {
			fmt.Fprintln(&against, c.Error())
		}
		if got := against.String(); got == "" != (test.against == "") || !strings.Contains(got, test.against) {
			t.Errorf("%s: against it is %q", name, got)
		}
		if got := strings.Join(plan.Notes, "\n"); !strings.HasPrefix(got, test.notes) || got == "" != (test.notes == "") {
			t.Errorf("%s: it notes %q", name, got)
		}
	}
}

func ofKubernetes(patch int) (d measurements.Document) {
	d.Image.Kubernetes = hullmark.Version{Major: 1, Minor: 36, Patch: patch}
	return d
}

// serving is the API of a cluster with one control plane, which has these metrics.
func serving(t *testing.T, metrics string) *API {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprint(w, metrics)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"one"}}]}`)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{apiCertificate(t, c, time.Hour)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	api, err := Connect(&cluster.File{Cluster: c}, APIOptions{Server: server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	return api
}
