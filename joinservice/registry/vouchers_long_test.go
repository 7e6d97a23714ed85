//go:build long

package registry

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

const vouchersPath = "/api/v1/namespaces/" + VoucherNamespace + "/configmaps"

// enrollersToken is what a token of the enroller's account lets do.
func enrollersToken(t *testing.T) (caller, *Registry) {
	t.Helper()
	raw, err := userCaller(t, "testenv", "system:masters").post(t.Context(), "/api/v1/namespaces/"+VoucherNamespace+"/serviceaccounts/"+Enroller+"/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Status struct{ Token string } }
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	config := api.Anonymous()
	config.BearerToken = answer.Status.Token
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return callAs(t, config, nil), r
}

// With a real API: a machine waits for its voucher, joins by it and comes back without it, and a removed one is counted no more.
func TestVouchedMachineJoins(t *testing.T) {
	ctx := t.Context()
	_, enroller := enrollersToken(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	node := nodetest.New(t, api.Cluster.ID())
	node.Boot(t, "image")
	node.Addresses = []string{"192.0.2.73"}
	address := servesPolicy(t, measurements.Policy{Version: 1, Groups: []measurements.Group{{Name: "racked", Enrollers: [][]byte{public}, Max: 1}}}, "image")
	dial := func(code string) joinservice.Machine {
		t.Helper()
		if err := node.Dial(ctx, address, api.Cluster.ID()); err != nil {
			t.Fatal(err)
		}
		if denied := node.Denied(); code == "" && denied != nil || code != "" && (denied == nil || denied.Code != code || !denied.Retry) {
			t.Fatalf("denied: %v, want %q", denied, code)
		}
		m, _, err := service.Load(ctx, node.ID)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := dial(joinservice.CodeVoucherMissing); m.Name != "" {
		t.Errorf("without a voucher it has a record: %+v", m)
	}
	eventually(t, "the quota is counted", func() error { return enroller.PutVoucher(ctx, testVoucher(t, node.ID, "cloud-9")) })
	dial(joinservice.CodeVoucherRefused)
	signed, err := measurements.SignVoucher(private, measurements.Voucher{
		ClusterRoot: api.Cluster.ID(), Group: "racked", EKID: node.ID, Name: "racked-1", ProviderID: "rack://7/1", NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := enroller.PutVoucher(ctx, signed); err != nil {
		t.Fatal(err)
	}
	if m := dial(""); m.Name != "racked-1" || m.ProviderID != "rack://7/1" || !bytes.Equal(m.Voucher, signed) {
		t.Errorf("its record is %+v", m)
	}
	if err := enroller.DeleteVoucher(ctx, node.ID); err != nil {
		t.Fatal(err)
	}
	grant := node.Ticket().Disk
	node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	m := dial("")
	if m.Record.Issued != 2 {
		t.Errorf("it came back as %+v", m)
	}
	counted := func() bool {
		all, err := admin.Counted(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(c joinservice.Machine) bool { return c.EKID == node.ID })
	}
	if !counted() {
		t.Error("its group does not count it")
	}
	if _, err := admin.Delete(ctx, m, true); err != nil {
		t.Fatal(err)
	}
	if counted() {
		t.Error("its group counts it although it was removed")
	}
	// Neither one that was counted and got no ticket, nor one that has a rule of its own since, stays there.
	for _, m := range []joinservice.Machine{{EKID: node.ID}, {EKID: node.ID, Name: "racked-1", Role: hullmark.Worker}} {
		if err := service.Enrol(ctx, "racked", node.ID, 1); err != nil {
			t.Fatal(err)
		}
		if !counted() {
			t.Fatal("positive control: its group does not count it")
		}
		if m.Name != "" {
			if _, err := admin.Store(ctx, m, ""); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := admin.Delete(ctx, joinservice.Machine{EKID: node.ID}, true); err != nil {
			t.Fatal(err)
		}
		if counted() {
			t.Errorf("its group counts %+v although it was removed", m)
		}
	}
}

func testVoucher(t *testing.T, node hullmark.EKID, name string) []byte {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := measurements.SignVoucher(private, measurements.Voucher{
		ClusterRoot: api.Cluster.ID(), Group: "cloud", EKID: node, Name: name, NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// An enroller's account puts vouchers where the service finds each by its machine, and nothing else anywhere.
func TestEnrollersAccount(t *testing.T) {
	try, enroller := enrollersToken(t)
	node, other := hullmark.EKID{0xe1}, hullmark.EKID{0xe2}
	first, second := testVoucher(t, node, "cloud-1"), testVoucher(t, node, "cloud-2")
	body := func(name, metadata, data string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `","labels":{"app.kubernetes.io/managed-by":"hullmark","app.kubernetes.io/component":"voucher"}` + metadata + `},` + data + `}`
	}
	post := func(path, body string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := try.post(ctx, path, body)
			return err
		}
	}
	remove := func(path string) func(context.Context) error {
		return func(ctx context.Context) error { return try.remove(ctx, path) }
	}
	get := func(path string) func(context.Context) error {
		return func(ctx context.Context) error { return try.get(ctx, path) }
	}
	const data = `"data":{"voucher":"x"}`
	eventually(t, "the quota is counted", func() error { return enroller.PutVoucher(t.Context(), first) })
	t.Cleanup(func() {
		_ = admin.DeleteVoucher(context.Background(), node)
		_ = admin.DeleteVoucher(context.Background(), other)
	})
	awaitPolicy(t, func() error { return post(vouchersPath, body("x", "", data))(t.Context()) })
	for what, want := range map[string][]byte{"its first": first, "another in its place": second} {
		if err := enroller.PutVoucher(t.Context(), want); err != nil {
			t.Fatalf("positive control: %s: %v", what, err)
		}
		if got, err := service.Voucher(t.Context(), node); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the service reads %q, %v", what, got, err)
		}
	}
	garbage := body(VoucherObject(other), "", data)
	if err := post(vouchersPath, garbage)(t.Context()); err != nil {
		t.Errorf("positive control: what a voucher says is the service's to judge: %v", err)
	}
	if got, err := service.Voucher(t.Context(), other); err != nil || string(got) != "x" {
		t.Errorf("the service reads %q, %v", got, err)
	}
	if all, err := enroller.ListVouchers(t.Context()); err == nil || !strings.Contains(err.Error(), VoucherObject(other)) || len(all) != 1 {
		t.Errorf("listed %d, %v", len(all), err)
	}
	third := VoucherObject(hullmark.EKID{0xe3})
	refused(t, []attempt{
		{"another name", post(vouchersPath, body("kube-root-ca.crt2", "", data))},
		{"a name that goes on", post(vouchersPath, body(third+"0", "", data))},
		{"another key", post(vouchersPath, body(third, "", `"data":{"voucher":"x","y":"z"}`))},
		{"no key", post(vouchersPath, body(third, "", `"data":{}`))},
		{"no data", post(vouchersPath, body(third, "", `"immutable":false`))},
		{"too large a voucher", post(vouchersPath, body(third, "", `"data":{"voucher":"`+strings.Repeat("x", 4097)+`"}`))},
		{"binary data", post(vouchersPath, body(third, "", data+`,"binaryData":{"y":"eA=="}`))},
		{"one that stays", post(vouchersPath, body(third, "", data+`,"immutable":true`))},
		{"an annotation", post(vouchersPath, body(third, `,"annotations":{"a":"b"}`, data))},
		{"a finalizer", post(vouchersPath, body(third, `,"finalizers":["example.net/a"]`, data))},
		{"an owner", post(vouchersPath, body(third, `,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]`, data))},
		{"another label", post(vouchersPath, strings.Replace(body(third, "", data), `"hullmark",`, `"hullmark","a":"b",`, 1))},
		{"Kubernetes' own object", remove(vouchersPath + "/kube-root-ca.crt")},
		{"a record", post("/api/v1/namespaces/hullmark/configmaps", body(MachineObject(node), "", data))},
		{"the records", get("/api/v1/namespaces/hullmark/configmaps")},
		{"the policy", get("/api/v1/namespaces/hullmark/configmaps/policy")},
		{"a Secret", get("/api/v1/namespaces/kube-system/secrets")},
		{"a Secret beside the vouchers", post("/api/v1/namespaces/"+VoucherNamespace+"/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`)},
		{"a pod beside the vouchers", post("/api/v1/namespaces/"+VoucherNamespace+"/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"a"}]}}`)},
		{"all vouchers at once", remove(vouchersPath)},
		{"a token for itself", post("/api/v1/namespaces/"+VoucherNamespace+"/serviceaccounts/"+Enroller+"/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)},
		{"a Node", post(nodesPath, registration("enrolled"))},
		{"a request for a certificate", post("/apis/certificates.k8s.io/v1/certificatesigningrequests", `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"a"},"spec":{"request":"eA==","signerName":"kubernetes.io/kubelet-serving","usages":["digital signature"]}}`)},
		{"a binding", post("/apis/rbac.authorization.k8s.io/v1/namespaces/"+VoucherNamespace+"/rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"a"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[]}`)},
	})
	for _, a := range []func() error{
		func() error { return service.PutVoucher(t.Context(), first) },
		func() error { return service.DeleteVoucher(t.Context(), node) },
		func() error { _, err := service.ListVouchers(t.Context()); return err },
	} {
		if err := a(); err == nil || !strings.Contains(err.Error(), "refuses it") {
			t.Errorf("the service did more than read a voucher: %v", err)
		}
	}
	if err := enroller.DeleteVoucher(t.Context(), node); err != nil {
		t.Errorf("positive control: its own voucher is deleted: %v", err)
	}
	if got, err := service.Voucher(t.Context(), node); err != nil || got != nil {
		t.Errorf("of a deleted voucher the service reads %q, %v", got, err)
	}
	if err := admin.PutVoucher(t.Context(), first); err != nil {
		t.Errorf("an operator puts a voucher: %v", err)
	}
}
