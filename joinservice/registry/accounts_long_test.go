//go:build long

package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark/kubeadm"
)

// What these tests show the attacker as: root on worker-1, who has its kubelet's certificate and the token of each pod there.
const (
	mine, victim          = "accounts-1", "accounts-2"
	myAddress, hisAddress = "192.0.2.11", "192.0.2.12"
	flannelUser           = "system:serviceaccount:kube-system:flannel"
)

// caller sends requests as one account.
type caller struct{ requests *rest.RESTClient }

func callAs(t *testing.T, config *rest.Config, err error) caller {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return caller{r.requests.client}
}

func userCaller(t *testing.T, user string, groups ...string) caller {
	config, err := api.Config(user, groups...)
	return callAs(t, config, err)
}

func (c caller) post(ctx context.Context, path, body string) ([]byte, error) {
	return said(c.requests.Post().AbsPath(path).Body([]byte(body)).SetHeader("Content-Type", "application/json").Do(ctx).Raw())
}

// patch sends a strategic merge patch, as flannel and kubelets do.
func (c caller) patch(ctx context.Context, path, body string) error {
	_, err := said(c.requests.Patch(types.StrategicMergePatchType).AbsPath(path).Body([]byte(body)).Do(ctx).Raw())
	return err
}

func (c caller) get(ctx context.Context, path string) error {
	_, err := said(c.requests.Get().AbsPath(path).Do(ctx).Raw())
	return err
}

func (c caller) remove(ctx context.Context, path string) error {
	_, err := said(c.requests.Delete().AbsPath(path).Body([]byte(`{"gracePeriodSeconds":0}`)).SetHeader("Content-Type", "application/json").Do(ctx).Raw())
	return err
}

// said adds to an error what the API server says of it.
func said(body []byte, err error) ([]byte, error) {
	var status struct{ Message string }
	if err != nil && json.Unmarshal(body, &status) == nil {
		err = fmt.Errorf("%s: %w", status.Message, err)
	}
	return body, err
}

// site is a cluster of two workers with Hullmark's flannel, at which somebody tries.
type site struct {
	root, kubelet, flannel caller
	uid                    string
}

const (
	nodesPath = "/api/v1/nodes"
	podsPath  = "/api/v1/namespaces/kube-system/pods"
)

var flannelParams = kubeadm.Params{
	NodeName: "cp", AdvertiseAddress: netip.MustParseAddr("192.0.2.1"),
	ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/16"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"),
}

// withWorkers applies flannel's manifest, registers two Nodes as their kubelets do, and gets the token that flannel has on the first.
func withWorkers(t *testing.T) site {
	t.Helper()
	ctx := t.Context()
	manifest, err := kubeadm.Flannel(flannelParams)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Apply(ctx, manifest); err != nil {
		t.Fatal(err)
	}
	s := site{root: userCaller(t, "testenv", "system:masters"), kubelet: userCaller(t, "system:node:"+mine, "system:nodes")}
	his := userCaller(t, "system:node:"+victim, "system:nodes")
	for name, c := range map[string]caller{mine: s.kubelet, victim: his} {
		created, err := c.post(ctx, nodesPath, registration(name))
		if err != nil {
			t.Fatalf("positive control: a kubelet registers its Node: %v", err)
		}
		t.Cleanup(func() {
			_ = s.root.patch(context.Background(), nodesPath+"/"+name, `{"metadata":{"finalizers":null}}`)
			_ = s.root.remove(context.Background(), nodesPath+"/"+name)
		})
		if name == mine {
			var node corev1.Node
			if err := json.Unmarshal(created, &node); err != nil {
				t.Fatal(err)
			}
			s.uid = string(node.UID)
		}
	}
	for _, patch := range [][2]string{{mine, `{"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"]}}`}, {victim, `{"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"]}}`}} {
		if err := s.root.patch(ctx, nodesPath+"/"+patch[0], patch[1]); err != nil {
			t.Fatal(err)
		}
	}
	// The kubelets say their addresses, and that they are Ready.
	for name, c := range map[string]caller{mine: s.kubelet, victim: his} {
		address := map[string]string{mine: myAddress, victim: hisAddress}[name]
		if err := c.patch(ctx, nodesPath+"/"+name+"/status", `{"status":{"addresses":[{"type":"InternalIP","address":"`+address+`"},{"type":"Hostname","address":"`+name+`"}],`+
			`"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}],"images":[{"names":["a","b"],"sizeBytes":7}]}}`); err != nil {
			t.Fatalf("positive control: a kubelet says its status: %v", err)
		}
	}
	s.flannel = s.tokenOf(t, "flannel")
	return s
}

// registration is what a kubelet creates (pkg/kubelet, initialNode).
func registration(name string) string {
	return `{"apiVersion":"v1","kind":"Node","metadata":{"name":"` + name + `","labels":{"kubernetes.io/hostname":"` + name + `","kubernetes.io/os":"linux","kubernetes.io/arch":"amd64",` +
		`"beta.kubernetes.io/os":"linux","beta.kubernetes.io/arch":"amd64","example.net/pool":"a"},` +
		`"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":"true"}},"spec":{"taints":[{"key":"example.net/a","effect":"NoSchedule"}]}}`
}

// tokenOf has a pod of an account on the attacker's node, and asks for its token as the kubelet does.
func (s site) tokenOf(t *testing.T, account string) caller {
	t.Helper()
	ctx, name := t.Context(), "pod-of-"+account
	created, err := s.root.post(ctx, podsPath, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"`+name+`"},"spec":{"nodeName":"`+mine+`","serviceAccountName":"`+account+`","containers":[{"name":"a","image":"a"}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.root.remove(context.Background(), podsPath+"/"+name) })
	var pod corev1.Pod
	if err := json.Unmarshal(created, &pod); err != nil {
		t.Fatal(err)
	}
	var answer struct{ Status struct{ Token string } }
	ask := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":"` + name + `","uid":"` + string(pod.UID) + `"}}}`
	eventually(t, "the node authorizer knows the pod", func() error {
		raw, err := s.kubelet.post(ctx, "/api/v1/namespaces/kube-system/serviceaccounts/"+account+"/token", ask)
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &answer)
	})
	config := api.Anonymous()
	config.BearerToken = answer.Status.Token
	return callAs(t, config, nil)
}

// lease is the patch of flannel's AcquireLease (pkg/subnet/kube), for one address.
func lease(address string) string {
	return `{"metadata":{"annotations":{"flannel.alpha.coreos.com/backend-data":"null","flannel.alpha.coreos.com/backend-type":"host-gw",` +
		`"flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/public-ip":"` + address + `"}}}`
}

// up is the patch of flannel's CompleteLease.
const up = `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"FlannelIsUp","message":"Flannel is running on this node"}]}}`

// attempt is one request, which must be refused.
type attempt struct {
	what string
	do   func(context.Context) error
}

// refused makes attempts. A rule that could not be evaluated refuses, too, and shows nothing.
func refused(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		err := a.do(t.Context())
		switch {
		case err == nil:
			t.Errorf("%s: done", a.what)
		case !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "resulted in error"):
			t.Errorf("%s: %v", a.what, err)
		default:
			t.Logf("%s: %v", a.what, err)
		}
	}
}

// awaitPolicy waits until the API server has taken a policy up, which is some time after it was applied.
func awaitPolicy(t *testing.T, refused func() error) {
	t.Helper()
	eventually(t, "the admission policy", func() error {
		if err := refused(); !apierrors.IsInvalid(err) {
			return fmt.Errorf("got %w, want the policy's refusal", err)
		}
		return nil
	})
}

// TestFlannelsToken tries with one worker's token of flannel what it may, and what it may not.
func TestFlannelsToken(t *testing.T) {
	s := withWorkers(t)
	own, other := nodesPath+"/"+mine+"/status", nodesPath+"/"+victim+"/status"
	awaitPolicy(t, func() error {
		return s.flannel.patch(t.Context(), other, `{"metadata":{"labels":{"example.net/pool":"tried"}}}`)
	})
	t.Run("positive control", func(t *testing.T) {
		for what, patch := range map[string]string{"lease": lease(myAddress), "the same again": lease(myAddress), "up": up} {
			if err := s.flannel.patch(t.Context(), own, patch); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for _, path := range []string{nodesPath, nodesPath + "/" + mine} {
			if err := s.flannel.get(t.Context(), path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	attempts := []attempt{
		{"another Node's lease", s.patching(other, lease(hisAddress))},
		{"another Node's status", s.patching(other, up)},
		{"the address of another Node's lease", s.patching(own, lease(hisAddress))},
		{"no address at all", s.patching(own, lease(""))},
		{"another backend", s.patching(own, `{"metadata":{"annotations":{"flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"12:c6:65:89:b4:e3\"}"}}}`)},
		{"an annotation that moves it", s.patching(own, `{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip-overwrite":"`+hisAddress+`"}}}`)},
		{"somebody else's annotation", s.patching(own, `{"metadata":{"annotations":{"example.net/a":"b"}}}`)},
		{"without somebody else's annotation", s.patching(own, `{"metadata":{"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":null}}}`)},
		{"a label", s.patching(own, `{"metadata":{"labels":{"node-restriction.kubernetes.io/secret":"yes"}}}`)},
		{"without a label", s.patching(own, `{"metadata":{"labels":{"example.net/pool":null}}}`)},
		{"a finalizer", s.patching(own, `{"metadata":{"finalizers":["example.net/a"]}}`)},
		{"its addresses", s.patching(own, `{"status":{"addresses":[{"type":"InternalIP","address":"`+hisAddress+`"}]}}`)},
		{"its capacity", s.patching(own, `{"status":{"capacity":{"cpu":"1000"}}}`)},
		{"its images", s.patching(own, `{"status":{"images":[]}}`)},
		{"that it is Ready", s.patching(own, `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"x"}]}}`)},
		{"its spec", s.patching(nodesPath+"/"+mine, `{"spec":{"unschedulable":true}}`)},
		{"a Node less", func(ctx context.Context) error { return s.flannel.remove(ctx, nodesPath+"/"+victim) }},
	}
	for _, key := range []string{"example.net/pool", "node-restriction.kubernetes.io/secret", "node-role.kubernetes.io/control-plane"} {
		attempts = append(attempts, attempt{"another Node's label " + key, s.patching(other, `{"metadata":{"labels":{"`+key+`":"x"}}}`)})
	}
	refused(t, append(attempts, attempt{"another Node's addresses", s.patching(other, `{"status":{"addresses":[{"type":"InternalIP","address":"`+myAddress+`"}]}}`)}))
	t.Run("a token of no node", func(t *testing.T) {
		raw, err := s.root.post(t.Context(), "/api/v1/namespaces/kube-system/serviceaccounts/flannel/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Status struct{ Token string } }
		if err := json.Unmarshal(raw, &answer); err != nil {
			t.Fatal(err)
		}
		config := api.Anonymous()
		config.BearerToken = answer.Status.Token
		free := callAs(t, config, nil)
		refused(t, []attempt{{"its lease", func(ctx context.Context) error { return free.patch(ctx, own, up) }}})
		certified := userCaller(t, flannelUser)
		refused(t, []attempt{{"its lease, by a certificate", func(ctx context.Context) error { return certified.patch(ctx, own, up) }}})
	})
}

// TestFlannelsTokenWithWireGuard tries the same where flannel encrypts: its lease names the node's public key, and nothing else.
func TestFlannelsTokenWithWireGuard(t *testing.T) {
	s := withWorkers(t)
	parameters := flannelParams
	parameters.WireGuard = true
	manifest, err := kubeadm.Flannel(parameters)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	own, other := nodesPath+"/"+mine+"/status", nodesPath+"/"+victim+"/status"
	awaitPolicy(t, func() error {
		return s.flannel.patch(t.Context(), other, `{"metadata":{"labels":{"example.net/pool":"tried"}}}`)
	})
	eventually(t, "the admission policy takes leases with a key", func() error {
		return s.flannel.patch(t.Context(), own, encryptedLease(myAddress, "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=", 51820))
	})
	t.Run("positive control", func(t *testing.T) {
		for _, key := range []string{"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "/+9z0rxVdBTPe2L5mXzMLuZbXmsQyEQMQOwHjQyLgXA="} {
			if err := s.flannel.patch(t.Context(), own, encryptedLease(myAddress, key, 51820)); err != nil {
				t.Error(err)
			}
		}
	})
	const key = "/+9z0rxVdBTPe2L5mXzMLuZbXmsQyEQMQOwHjQyLgXA="
	refused(t, []attempt{
		{"the backend that does not encrypt", s.patching(own, lease(myAddress))},
		{"another Node's lease", s.patching(other, encryptedLease(hisAddress, key, 51820))},
		{"another Node's address", s.patching(own, encryptedLease(hisAddress, key, 51820))},
		{"no key", s.patching(own, encryptedLease(myAddress, "", 51820))},
		{"more than a key", s.patching(own, encryptedLease(myAddress, key+`","Mode":"`, 51820))},
		{"another port", s.patching(own, encryptedLease(myAddress, key, 22))},
	})
}

// TestFlannelsTokenOfBothFamilies tries the same where pods have addresses of both families, and of IPv6 alone: a lease names an
// address of the Node's own of each, and no other.
func TestFlannelsTokenOfBothFamilies(t *testing.T) {
	const my6, his6 = "2001:db8::7", "2001:db8::8"
	s := withWorkers(t)
	own, other := nodesPath+"/"+mine+"/status", nodesPath+"/"+victim+"/status"
	named := func(v4, v6, data6 string) string {
		return strings.Replace(lease(v4), `"annotations":{`, fmt.Sprintf(`"annotations":{"flannel.alpha.coreos.com/public-ipv6":%q,"flannel.alpha.coreos.com/backend-v6-data":%q,`, v6, data6), 1)
	}
	// As a kubelet does: by their types alone, two addresses of one type would be one.
	if err := s.kubelet.patch(t.Context(), own, `{"status":{"addresses":[{"$patch":"replace"},{"type":"InternalIP","address":"`+myAddress+`"},{"type":"InternalIP","address":"`+my6+`"},{"type":"Hostname","address":"`+mine+`"}]}}`); err != nil {
		t.Fatal(err)
	}
	refused(t, []attempt{{"of IPv4 alone: an IPv6 lease", s.patching(own, named(myAddress, my6, "null"))}})
	both := flannelParams
	both.ServiceSubnet, both.PodSubnet = kubeadm.MustParseSubnets("10.96.0.0/16,fd00:10:96::/112"), kubeadm.MustParseSubnets("10.244.0.0/16,fd00:10:244::/56")
	apply := func(p kubeadm.Params) {
		t.Helper()
		manifest, err := kubeadm.Flannel(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := api.Apply(t.Context(), manifest); err != nil {
			t.Fatal(err)
		}
	}
	apply(both)
	eventually(t, "the admission policy takes leases of both families", func() error { return s.flannel.patch(t.Context(), own, named(myAddress, my6, "null")) })
	refused(t, []attempt{
		{"another Node's IPv6 address", s.patching(own, named(myAddress, his6, "null"))},
		{"another Node's IPv4 address", s.patching(own, named(hisAddress, my6, "null"))},
		{"no IPv6 address", s.patching(own, named(myAddress, "", "null"))},
		{"data of another backend", s.patching(own, named(myAddress, my6, `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`))},
		{"another Node's lease", s.patching(other, named(hisAddress, his6, "null"))},
		{"an annotation that moves it", s.patching(own, `{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ipv6-overwrite":"`+his6+`"}}}`)},
	})
	six := both
	six.ServiceSubnet, six.PodSubnet = both.ServiceSubnet[1:], both.PodSubnet[1:]
	apply(six)
	eventually(t, "the admission policy takes leases of IPv6 alone", func() error { return s.flannel.patch(t.Context(), own, named("0.0.0.0", my6, "null")) })
	refused(t, []attempt{
		{"an IPv4 address", s.patching(own, named(myAddress, my6, "null"))},
		{"another Node's IPv6 address, alone", s.patching(own, named("0.0.0.0", his6, "null"))},
	})
	apply(flannelParams)
}

// encryptedLease is the patch of a lease with WireGuard's backend.
func encryptedLease(address, key string, port int) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{"flannel.alpha.coreos.com/backend-data":%q,"flannel.alpha.coreos.com/backend-type":"wireguard",`+
		`"flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/public-ip":%q}}}`, fmt.Sprintf(`{"PublicKey":"%s","Port":%d}`, key, port), address)
}

func (s site) patching(path, patch string) func(context.Context) error {
	return func(ctx context.Context) error { return s.flannel.patch(ctx, path, patch) }
}

// TestKubeletsAccount tries with one kubelet's certificate what NodeRestriction leaves open, or not.
func TestKubeletsAccount(t *testing.T) {
	s := withWorkers(t)
	own, other := nodesPath+"/"+mine, nodesPath+"/"+victim
	if err := s.root.patch(t.Context(), own, `{"spec":{"unschedulable":true},"metadata":{"labels":{"node-restriction.kubernetes.io/secret":"no"}}}`); err != nil {
		t.Fatal(err)
	}
	patching := func(path, patch string) func(context.Context) error {
		return func(ctx context.Context) error { return s.kubelet.patch(ctx, path, patch) }
	}
	awaitPolicy(t, func() error {
		return s.kubelet.patch(t.Context(), own, `{"metadata":{"labels":{"example.net/tried":"yes"}}}`)
	})
	for what, patch := range map[string]string{
		"heartbeat":      `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"still"}]}}`,
		"CSI annotation": `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{}"}}}`,
	} {
		if err := s.kubelet.patch(t.Context(), own+"/status", patch); err != nil {
			t.Errorf("positive control: %s: %v", what, err)
		}
	}
	refused(t, []attempt{
		{"a label of its own", patching(own, `{"metadata":{"labels":{"example.net/pool":"secret"}}}`)},
		{"the same by its status", patching(own+"/status", `{"metadata":{"labels":{"example.net/pool":"secret"}}}`)},
		{"a control plane's label", patching(own, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)},
		{"a label that only administrators set", patching(own, `{"metadata":{"labels":{"node-restriction.kubernetes.io/secret":"yes"}}}`)},
		{"another node's hostname", patching(own, `{"metadata":{"labels":{"kubernetes.io/hostname":"`+victim+`"}}}`)},
		{"its taints", patching(own, `{"spec":{"taints":[]}}`)},
		{"that it takes pods again", patching(own, `{"spec":{"unschedulable":false}}`)},
		{"its pods' addresses", patching(own, `{"spec":{"podCIDR":"10.244.2.0/24","podCIDRs":["10.244.2.0/24"]}}`)},
		{"a finalizer", patching(own, `{"metadata":{"finalizers":["example.net/a"]}}`)},
		{"where flannel leads", patching(own, lease(hisAddress))},
		{"the same by its status", patching(own+"/status", lease(hisAddress))},
		{"another Node", patching(other+"/status", `{"status":{"addresses":[]}}`)},
		{"an API server's Secret", func(ctx context.Context) error {
			return s.kubelet.get(ctx, "/api/v1/namespaces/kube-system/secrets/any")
		}},
		{"a token of an account that has no pod there", func(ctx context.Context) error {
			_, err := s.kubelet.post(ctx, "/api/v1/namespaces/kube-system/serviceaccounts/node-controller/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
			return err
		}},
		{"a token that is bound to no pod", func(ctx context.Context) error {
			_, err := s.kubelet.post(ctx, "/api/v1/namespaces/kube-system/serviceaccounts/flannel/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
			return err
		}},
		{"a Node less", func(ctx context.Context) error { return s.kubelet.remove(ctx, own) }},
	})
	t.Run("registers again", s.registersAgain)
}

// registersAgain is a kubelet whose Node was removed.
func (s site) registersAgain(t *testing.T) {
	registering := func(change func(*corev1.Node)) func(context.Context) error {
		return func(ctx context.Context) error {
			var node corev1.Node
			if err := json.Unmarshal([]byte(registration(mine)), &node); err != nil {
				return err
			}
			change(&node)
			body, err := json.Marshal(node)
			if err != nil {
				return err
			}
			if _, err = s.kubelet.post(ctx, nodesPath, string(body)); err == nil {
				err = s.root.remove(ctx, nodesPath+"/"+mine)
			}
			return err
		}
	}
	if err := s.root.remove(t.Context(), nodesPath+"/"+mine); err != nil {
		t.Fatal(err)
	}
	refused(t, []attempt{
		{"with another node's pods", registering(func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.244.2.0/24", []string{"10.244.2.0/24"} })},
		{"with everybody's addresses", registering(func(n *corev1.Node) { n.Spec.PodCIDR = "0.0.0.0/1" })},
		{"with another node's hostname", registering(func(n *corev1.Node) { n.Labels["kubernetes.io/hostname"] = victim })},
		{"with a control plane's label", registering(func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" })},
		{"with a lease of flannel's", registering(func(n *corev1.Node) { n.Annotations["flannel.alpha.coreos.com/public-ip"] = hisAddress })},
		{"with a finalizer", registering(func(n *corev1.Node) { n.Finalizers = []string{"example.net/a"} })},
	})
	if err := registering(func(*corev1.Node) {})(t.Context()); err != nil {
		t.Errorf("positive control: %v", err)
	}
}

// TestMirrorPods tries to stand behind a Service, or among the control planes, by a Pod that a kubelet shows.
func TestMirrorPods(t *testing.T) {
	s := withWorkers(t)
	pod := func(namespace, name, labels string) func(context.Context) error {
		body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `","labels":` + labels + `,"annotations":{"kubernetes.io/config.mirror":"x"},` +
			`"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"` + mine + `","uid":"` + s.uid + `","controller":true}]},` +
			`"spec":{"nodeName":"` + mine + `","hostNetwork":true,"containers":[{"name":"a","image":"a"}],"tolerations":[{"operator":"Exists"}]}}`
		return func(ctx context.Context) error {
			path := "/api/v1/namespaces/" + namespace + "/pods"
			_, err := s.kubelet.post(ctx, path, body)
			if err == nil {
				t.Cleanup(func() { _ = s.root.remove(context.Background(), path+"/"+name) })
			}
			return err
		}
	}
	const planes = `{"component":"etcd","tier":"control-plane"}`
	tries := 0
	for _, labels := range []string{`{"k8s-app":"kube-dns"}`, planes} {
		awaitPolicy(t, func() error {
			tries++
			return pod("kube-system", fmt.Sprintf("tried-%d", tries), labels)(t.Context())
		})
	}
	refused(t, []attempt{
		{"one that answers for the cluster's DNS", pod("kube-system", "dns", `{"k8s-app":"kube-dns"}`)},
		{"one in a namespace of its choice", pod("default", "other", `{}`)},
		{"a worker's that passes for a member of etcd", pod("kube-system", "etcd-"+mine, planes)},
		{"a worker's with one of the labels", pod("kube-system", "etcd-"+mine, `{"tier":"control-plane"}`)},
	})
	if err := pod("kube-system", "proxy-"+mine, `{}`)(t.Context()); err != nil {
		t.Errorf("positive control: a worker shows its own: %v", err)
	}
	if err := s.root.patch(t.Context(), nodesPath+"/"+mine, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "positive control: a control plane shows its own", func() error {
		return pod("kube-system", "etcd-"+mine, planes)(t.Context())
	})
	refused(t, []attempt{{"a control plane's that answers for the cluster's DNS", pod("kube-system", "dns", `{"k8s-app":"kube-dns"}`)}})
}

// applyProxyAndDNS applies what gives kube-proxy and CoreDNS their permissions: our manifest of the first, kubeadm's of the second.
func applyProxyAndDNS(t *testing.T) error {
	proxy, err := kubeadm.KubeProxy(flannelParams)
	if err != nil {
		return err
	}
	dns, err := exec.CommandContext(t.Context(), filepath.Join(api.Programs(), "kubeadm"), "init", "phase", "addon", "coredns", "--print-manifest", "--kubernetes-version="+kubeadm.Version).Output()
	if err != nil {
		return fmt.Errorf("kubeadm's manifest of CoreDNS: %w", err)
	}
	return errors.Join(api.Apply(t.Context(), proxy), api.Apply(t.Context(), dns))
}

// TestAccountsOfAWorker holds the table of accounts in docs/threats.md: what each that a worker has the token of may do, and no more.
func TestAccountsOfAWorker(t *testing.T) {
	withWorkers(t)
	if err := applyProxyAndDNS(t); err != nil {
		t.Fatal(err)
	}
	writes := []access{
		"update /nodes - x", "patch /nodes - x", "create /nodes", "delete /nodes - x", "patch /nodes/status - x", "create /pods kube-system", "patch /pods kube-system x", "get /pods/exec kube-system x",
		"create /pods/exec kube-system x", "get /nodes/proxy - x", "get /secrets kube-system x", "list /secrets", "create /serviceaccounts/token kube-system x", "update /configmaps kube-system x",
		"update /services default x", "patch /services/status default x", "create discovery.k8s.io/endpointslices default", "update discovery.k8s.io/endpointslices default x", "update /endpoints default x",
		"create certificates.k8s.io/certificatesigningrequests", "update certificates.k8s.io/certificatesigningrequests/approval", "create rbac.authorization.k8s.io/clusterrolebindings",
		"impersonate /users", "impersonate /groups - system:masters", "get /configmaps hullmark policy", "update admissionregistration.k8s.io/validatingadmissionpolicies - hullmark-flannel",
		"delete admissionregistration.k8s.io/validatingadmissionpolicybindings - hullmark-kubelet-nodes", "create apps/daemonsets kube-system", "create /events kube-system",
		"create networking.k8s.io/networkpolicies default", "delete networking.k8s.io/networkpolicies default x", "list /configmaps", "get /pods/log kube-system x",
	}
	account := func(name string) (string, []string) {
		return "system:serviceaccount:kube-system:" + name, []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}
	}
	enforcing := flannelParams
	enforcing.NetworkPolicies = true
	manifest, err := kubeadm.Flannel(enforcing)
	if err != nil {
		t.Fatal(err)
	}
	if may(t, "list /pods", "system:serviceaccount:kube-system:flannel", "system:serviceaccounts") {
		t.Error("flannel reads pods, and enforces no policies")
	}
	if err := api.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	for name, allowed := range map[string]string{
		"flannel":    "get /nodes - x;list /nodes;watch /nodes;patch /nodes/status - x;list /pods;watch /pods;list /namespaces;watch /namespaces;list networking.k8s.io/networkpolicies;watch networking.k8s.io/networkpolicies",
		"kube-proxy": "list /nodes;watch /nodes;list /services;watch /services;list discovery.k8s.io/endpointslices;watch discovery.k8s.io/endpointslices;create /events kube-system",
		"coredns":    "list /services;list /pods;list /namespaces;list discovery.k8s.io/endpointslices",
		"default":    "",
	} {
		user, groups := account(name)
		for _, a := range strings.Split(allowed, ";") {
			if a != "" && !may(t, access(a), user, groups...) {
				t.Errorf("%s may not %s", name, a)
			}
		}
		for _, a := range writes {
			if may(t, a, user, groups...) && !strings.Contains(allowed, string(a)) {
				t.Errorf("%s may %s", name, a)
			}
		}
	}
}
