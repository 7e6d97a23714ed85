package enroll

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// Who may make Secrets in a Cluster's namespace writes its kubeconfig: neither has the manager run a program by it, nor show a server its
// own account's token, whose file every pod has.
func TestConnectGivesNothingAway(t *testing.T) {
	folder := t.TempDir()
	token, ran := filepath.Join(folder, "token"), filepath.Join(folder, "ran")
	if err := os.WriteFile(token, []byte("the-manager's"), 0o600); err != nil {
		t.Fatal(err)
	}
	var shown []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	for name, user := range map[string]*clientcmdapi.AuthInfo{
		"a file": {TokenFile: token},
		"a program": {Exec: &clientcmdapi.ExecConfig{
			Command: "/bin/sh", Args: []string{"-c", "touch " + ran}, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}},
	} {
		workload, err := connect(t, server, user)
		if err == nil {
			t.Errorf("%s: taken", name)
			_, _, _ = workload.Node(t.Context(), "n")
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the manager ran a program")
	}
	if len(shown) > 0 {
		t.Errorf("the server was shown %q", shown)
	}
}

// connect reaches a server by the kubeconfig of the Cluster "c".
func connect(t *testing.T, server *httptest.Server, user *clientcmdapi.AuthInfo) (Workload, error) {
	t.Helper()
	return named(t, newWorld(t), server, user).Connect(t.Context(), requestForCluster.NamespacedName)
}

// named makes the kubeconfig of the Cluster "c".
func named(t *testing.T, w *world, server *httptest.Server, user *clientcmdapi.AuthInfo) *Clusters {
	t.Helper()
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": user}, Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	w.make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-kubeconfig"}, Data: map[string][]byte{"value": text}})
	return &Clusters{Live: w.client}
}

// Of a Cluster that is gone nothing is kept: who may make Clusters makes as many as he likes, one after the other.
func TestDisconnects(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	w := newWorld(t)
	clusters := named(t, w, server, &clientcmdapi.AuthInfo{Token: "t"})
	if _, err := clusters.Connect(t.Context(), requestForCluster.NamespacedName); err != nil || len(clusters.known) != 1 {
		t.Fatalf("%d Clusters, %v", len(clusters.known), err)
	}
	r := w.reconciler()
	r.Connect, r.Disconnect = clusters.Connect, clusters.Disconnect
	if err := w.client.Delete(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), requestForCluster); err != nil || len(clusters.known) != 0 {
		t.Errorf("%d Clusters, %v", len(clusters.known), err)
	}
}

// serving is a cluster whose API server answers everything so.
func serving(t *testing.T, answer http.HandlerFunc) Workload {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	workload, err := connect(t, server, &clientcmdapi.AuthInfo{Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	return workload
}

// largest is a voucher whose every field is as long as it may be, as an API server keeps it.
func largest(t *testing.T, key ed25519.PrivateKey, i int) corev1.ConfigMap {
	t.Helper()
	group := strings.Repeat("g", 46)
	v := measurements.Voucher{
		Schema: measurements.VoucherSchema, ClusterRoot: hullmark.ClusterRoot{1}, Group: group, EKID: hullmark.EKID{1, byte(i >> 8), byte(i)}, Name: fmt.Sprintf("%s-%016d", group, i),
		ProviderID: "p://" + strings.Repeat("p", hullmark.MaxProviderID-4), NotAfter: time.Unix(1<<31, 0).UTC(),
	}
	signed, err := measurements.SignVoucher(key, v)
	if err != nil {
		t.Fatal(err)
	}
	o := corev1.ConfigMap{Data: map[string]string{"voucher": string(signed)}}
	o.Namespace, o.Name, o.UID = registry.VoucherNamespace, registry.VoucherObject(v.EKID), "c4d1a2f0-8a55-4d0e-9d5f-2f1f3f2b7a10"
	o.Labels = map[string]string{"app.kubernetes.io/managed-by": "hullmark", "app.kubernetes.io/component": "voucher"}
	for range 3 {
		o.ManagedFields = append(o.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: "hullmark", Operation: "Update", APIVersion: "v1", Time: &metav1.Time{}, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(
				`{"f:data":{".":{},"f:voucher":{}},"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/component":{},"f:app.kubernetes.io/managed-by":{}}}}`,
			),
		})
	}
	return o
}

// A cluster of 5,000 workers, whose vouchers are as large as they get, is read whole, page by page.
func TestManyVouchers(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	const all = 5000
	var objects []corev1.ConfigMap
	for i := range all {
		objects = append(objects, largest(t, key, i))
	}
	longest := 0
	workload := serving(t, func(w http.ResponseWriter, r *http.Request) {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		to := min(from+limit, all)
		list := corev1.ConfigMapList{Items: objects[from:to]}
		if to < all {
			list.Continue = strconv.Itoa(to)
		}
		text, err := json.Marshal(list)
		if err != nil {
			t.Error(err)
		}
		longest = max(longest, len(text), 64*strings.Count(string(text), ","))
		_, _ = w.Write(text)
	})
	r := &run{workload: workload, key: key, asking: t.Context()}
	if err := r.readVouchers(); err != nil || len(r.vouchers) != all {
		t.Fatalf("%d vouchers, %v", len(r.vouchers), err)
	}
	if longest > 3<<20 { // A quarter to spare: 4 MiB, and a comma for each 64 bytes of it.
		t.Errorf("a page takes %d bytes", longest)
	}
}

// A cluster that answers what it likes gets no more of the manager's memory than some of its answers' lengths, which are bounded.
func TestHostileCluster(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a list of nothings": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"items":[{}` + strings.Repeat(",1", 2<<20-100) + "]}"))
		},
		"a list of nothings as YAML": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/yaml")
			_, _ = w.Write([]byte("items:\n" + strings.Repeat("- {}\n", 1<<19)))
		},
		"a list without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"metadata":{"continue":"more"},"items":[` + strings.Repeat(" ", 1<<16) + `]}`))
		},
		"a text without end": func(w http.ResponseWriter, _ *http.Request) {
			for piece := []byte(`{"` + strings.Repeat("x", 1<<16)); ; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			workload := serving(t, answer)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := &run{asking: t.Context(), workload: workload, key: make(ed25519.PrivateKey, ed25519.PrivateKeySize)}
			if err := r.readVouchers(); err == nil {
				t.Error("its list was taken")
			}
			_, err := workload.Joined(t.Context())
			if err == nil {
				t.Error("its records were taken")
			}
			runtime.ReadMemStats(&after)
			// All that was taken from the heap, twice, the server's own writing included, most of which is free again by then.
			if took := after.TotalAlloc - before.TotalAlloc; took > 100<<20 {
				t.Errorf("%d MiB: %v", took>>20, err)
			}
		})
	}
}

// A cluster whose answers take long, or who wants to be asked again in a day, does not keep a reconciliation, of which there are only so
// many at a time. It is asked again as after errors, later each time.
func TestSlowCluster(t *testing.T) {
	late := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "86400")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	for name, answer := range map[string]http.HandlerFunc{
		"a list, a page at a time": func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Millisecond)
			_, _ = w.Write([]byte(`{"metadata":{"continue":"more"}}`))
		},
		"its list comes tomorrow": late,
		"its Nodes come tomorrow": func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/nodes/") {
				late(w, r)
				return
			}
			_, _ = w.Write([]byte(`{}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.machine("workers-x", ek1)
			r := w.reconciler()
			r.patience = 300 * time.Millisecond
			slow := serving(t, answer)
			r.Connect = func(context.Context, client.ObjectKey) (Workload, error) { return slow, nil }
			ended := make(chan error, 1)
			go func() {
				_, err := r.Reconcile(t.Context(), requestForCluster)
				ended <- err
			}()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it is asked again as if it had answered")
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the reconciliation does not end")
			}
			if reason, message := w.reason("workers-x"); reason != bootstrapv1.ClusterUnreachableReason {
				t.Errorf("%s: %s", reason, message)
			}
		})
	}
}
