package kubeadm_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm"
)

func TestWithEndpoint(t *testing.T) {
	text := nodetest.NewAuthority(t).Kubeconfig(t, "192.0.2.7:6443")
	if _, differs, err := kubeadm.WithEndpoint(text, "192.0.2.7:6443"); differs || err != nil {
		t.Errorf("the same endpoint: %v, %v", differs, err)
	}
	changed, differs, err := kubeadm.WithEndpoint(text, "api.example.net:443")
	if !differs || err != nil {
		t.Fatal(differs, err)
	}
	back, _, err := kubeadm.WithEndpoint(changed, "192.0.2.7:6443")
	if err != nil {
		t.Fatal(err)
	}
	var before, after any
	if yaml.Unmarshal(text, &before) != nil || yaml.Unmarshal(back, &after) != nil || !reflect.DeepEqual(before, after) || !strings.Contains(string(changed), "server: https://api.example.net:443") {
		t.Errorf("changed:\n%s", changed)
	}
	for _, broken := range []string{"", "clusters: [{}, {}]", "clusters: [{name: a}]", "clusters: 7", "{"} {
		if _, _, err := kubeadm.WithEndpoint([]byte(broken), "a:1"); err == nil {
			t.Errorf("%q is taken", broken)
		}
	}
}

func TestWithControlPlane(t *testing.T) {
	stored := []byte("apiServer:\n  certSANs: [127.0.0.1]\n  extraArgs: [{name: v, value: '2'}]\ncontrolPlaneEndpoint: 192.0.2.7:6443\nkind: ClusterConfiguration\n")
	changed, differs, err := kubeadm.WithControlPlane(stored, "api.example.net:443", []string{"203.0.113.7"})
	if !differs || err != nil {
		t.Fatal(differs, err)
	}
	for _, want := range []string{"- 127.0.0.1", "- api.example.net", "- 203.0.113.7", "- 192.0.2.7", "controlPlaneEndpoint: api.example.net:443", "value: \"2\"", "kind: ClusterConfiguration"} {
		if !strings.Contains(string(changed), want) {
			t.Errorf("%q is missing in\n%s", want, changed)
		}
	}
	if _, differs, err := kubeadm.WithControlPlane(changed, "api.example.net:443", []string{"203.0.113.7"}); differs || err != nil {
		t.Errorf("once more: %v, %v", differs, err)
	}
	if _, _, err := kubeadm.WithControlPlane([]byte("{"), "a:1", nil); err == nil {
		t.Error("no YAML is taken")
	}
}

// A kubeconfig takes API servers by all certificates of a file, and by no file that it names; users and server stay as they are.
func TestWithAuthorities(t *testing.T) {
	ca, next := nodetest.NewAuthority(t), nodetest.NewAuthority(t)
	text, both := ca.Kubeconfig(t, "192.0.2.7:6443"), slices.Concat(next.PEM, ca.PEM)
	if _, differs, err := kubeadm.WithAuthorities(text, ca.PEM); differs || err != nil {
		t.Errorf("the same authority: %v, %v", differs, err)
	}
	changed, differs, err := kubeadm.WithAuthorities(text, both)
	if !differs || err != nil {
		t.Fatal(differs, err)
	}
	if found, err := kubeadm.AuthoritiesOf(changed); !bytes.Equal(found, both) || err != nil {
		t.Errorf("it has %q, %v", found, err)
	}
	back, _, err := kubeadm.WithAuthorities(changed, ca.PEM)
	if err != nil {
		t.Fatal(err)
	}
	var before, after map[string]any
	if err := errors.Join(yaml.Unmarshal(text, &before), yaml.Unmarshal(back, &after)); err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("back again it is\n%s\nand was\n%s\n%v", back, text, err)
	}
	file := strings.Replace(string(text), "certificate-authority-data:", "certificate-authority: /tmp/x, certificate-authority-data:", 1)
	if plain, differs, err := kubeadm.WithAuthorities([]byte(file), ca.PEM); !differs || err != nil || strings.Contains(string(plain), "/tmp/x") {
		t.Errorf("a file is named still: %t, %v\n%s", differs, err, plain)
	}
	for _, broken := range []string{"", "clusters: []", "clusters: [{cluster: {certificate-authority-data: '?'}}]", "clusters: [{cluster: {server: x}}]"} {
		if found, err := kubeadm.AuthoritiesOf([]byte(broken)); err == nil {
			t.Errorf("%q has %q", broken, found)
		}
	}
}
