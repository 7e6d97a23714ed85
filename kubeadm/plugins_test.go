package kubeadm

import (
	"slices"
	"strings"
	"testing"
)

func TestWithoutPrograms(t *testing.T) {
	const head = "apiVersion: v1\nkind: Config\nclusters:\n- cluster: {server: 'https://192.0.2.7:6443'}\n  name: a\n"
	for name, c := range map[string]struct {
		users   string
		dropped []string
		fails   bool
	}{
		"the kubelet's":         {"users:\n- name: n\n  user: {client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem, client-key: /var/lib/kubelet/pki/kubelet-client-current.pem}\n", nil, false},
		"no users":              {"", nil, false},
		"an empty user":         {"users:\n- name: n\n  user: null\n", nil, false},
		"a program":             {"users:\n- name: n\n  user: {exec: {command: /var/lib/containerd/x}}\n", []string{"exec"}, false},
		"a program beside":      {"users:\n- name: n\n  user: {client-key: /k, exec: {command: /x}, auth-provider: {name: gcp}}\n", []string{"auth-provider", "exec"}, false},
		"a second user's":       {"users:\n- name: n\n  user: {client-key: /k}\n- name: m\n  user: {exec: {command: /x}}\n", []string{"exec"}, false},
		"an object of users":    {"users: {a: {exec: {command: /x}}}\n", nil, true},
		"a user that is a list": {"users:\n- name: n\n  user: [{exec: {command: /x}}]\n", nil, true},
	} {
		plain, dropped, err := WithoutPrograms([]byte(head + c.users))
		if (err != nil) != c.fails || !slices.Equal(dropped, c.dropped) || strings.Contains(string(plain), "/x") {
			t.Errorf("%s: %q, %v\n%s", name, dropped, err, plain)
		}
		if err != nil {
			continue
		}
		if again, dropped, err := WithoutPrograms(plain); err != nil || len(dropped) > 0 || string(again) != string(plain) || !strings.Contains(string(plain), "192.0.2.7") {
			t.Errorf("%s: again %q, %v\n%s", name, dropped, err, again)
		}
	}
	if _, _, err := WithoutPrograms([]byte("null")); err == nil {
		t.Error("nothing is a kubeconfig")
	}
}

// What WithoutPrograms returns names no program, and stays as it is.
func FuzzWithoutPrograms(f *testing.F) {
	f.Add([]byte("users:\n- name: n\n  user: {exec: {command: /x}}\n"))
	f.Add([]byte("users: [{user: {client-key: /k}}]\nclusters: []\n"))
	f.Fuzz(func(t *testing.T, kubeconfig []byte) {
		plain, _, err := WithoutPrograms(kubeconfig)
		if err != nil {
			return
		}
		if again, dropped, err := WithoutPrograms(plain); err != nil || len(dropped) > 0 || string(again) != string(plain) {
			t.Errorf("%q becomes %q: %q, %v", plain, again, dropped, err)
		}
	})
}
