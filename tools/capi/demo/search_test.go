package main

import (
	"testing"

	"github.com/hullmark/hullmark/internal/canary"
)

// What is found has to be the kubeconfig's key in its own Secret, and nothing else; a search that does not find that one is none.
func TestJudge(t *testing.T) {
	own := canary.Finding{Where: "the management cluster: Secret " + namespace + "/prod-kubeconfig", Secret: kubeconfigKey}
	for name, c := range map[string]struct {
		found []canary.Finding
		good  bool
	}{
		"its own Secret":             {[]canary.Finding{own}, true},
		"and etcd, which holds that": {[]canary.Finding{own, {Where: "management/etcd/member/snap/db", Secret: kubeconfigKey}}, true},
		"nothing":                    {nil, false},
		"another Secret":             {[]canary.Finding{own, {Where: "the cluster: Secret kube-system/x", Secret: kubeconfigKey}}, false},
		"a log":                      {[]canary.Finding{own, {Where: "logs/qemu.log", Secret: kubeconfigKey}}, false},
		"another key":                {[]canary.Finding{own, {Where: "management/etcd/member/snap/db", Secret: "the root key"}}, false},
		"another key in that Secret": {[]canary.Finding{own, {Where: own.Where, Secret: "the Kubernetes CA's key"}}, false},
	} {
		if err := judge(c.found); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
