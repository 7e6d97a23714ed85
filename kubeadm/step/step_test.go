package step

import (
	"errors"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

func v(text string) hullmark.Version {
	if text == "" {
		return hullmark.Version{}
	}
	version, err := hullmark.ParseVersion(text)
	if err != nil {
		panic(err)
	}
	return version
}

func release(kubernetes, etcd string) Release {
	return Release{Image: "node", Versions: hullmark.Versions{Kubernetes: v(kubernetes), Etcd: v(etcd)}, SVN: 3}
}

// seen are nodes of these versions, called a, b and so on.
func seen(versions ...string) (all []Seen) {
	for i, version := range versions {
		all = append(all, Seen{string(rune('a' + i)), v(version)})
	}
	return all
}

// refused wants a condition of a code that says this, or none for no code.
func refused(t *testing.T, err error, code, says string) {
	t.Helper()
	var c *hullmark.Condition
	switch {
	case code == "" && err != nil:
		t.Errorf("refused: %v", err)
	case code != "" && !errors.As(err, &c):
		t.Errorf("got %v, want %s", err, code)
	case code != "" && (c.Code != code || !strings.Contains(c.Error(), says)):
		t.Errorf("got %v, want %s that says %q", c, code, says)
	}
}

func TestSteps(t *testing.T) {
	const etcd = "v3.6.8"
	for name, c := range map[string]struct {
		role              hullmark.Role
		from, to          Release
		servers, kubelets []Seen
		code, says        string
	}{
		"a patch":                    {hullmark.ControlPlane, release("v1.36.2", etcd), release("v1.36.3", etcd), seen("v1.36.2"), seen("v1.36.2", "v1.33.1"), "", ""},
		"a patch back":               {hullmark.ControlPlane, release("v1.36.3", etcd), release("v1.36.2", etcd), nil, nil, "", ""},
		"a minor release":            {hullmark.ControlPlane, release("v1.35.4", etcd), release("v1.36.3", etcd), seen("v1.35.4", "v1.36.3"), seen("v1.35.4"), "", ""},
		"two minor releases":         {hullmark.ControlPlane, release("v1.35.4", etcd), release("v1.37.0", etcd), nil, nil, "kubernetes-step", "expected 1.36 at most, got v1.37.0"},
		"a minor release back":       {hullmark.ControlPlane, release("v1.36.3", etcd), release("v1.35.9", etcd), nil, nil, "kubernetes-step", "earlier minor release"},
		"a major release":            {hullmark.Worker, release("v1.36.3", etcd), release("v2.0.0", etcd), seen("v2.0.0"), nil, "kubernetes-step", "more than one"},
		"etcd's minor release":       {hullmark.ControlPlane, release("v1.35.4", etcd), release("v1.36.3", "v3.7.0"), nil, nil, "etcd-step", "expected 3.6, got v3.7.0"},
		"etcd's, on a worker":        {hullmark.Worker, release("v1.35.4", etcd), release("v1.36.3", "v3.7.0"), seen("v1.36.3"), nil, "", ""},
		"etcd's patch back":          {hullmark.ControlPlane, release("v1.36.3", etcd), release("v1.36.3", "v3.6.1"), nil, nil, "", ""},
		"no version":                 {hullmark.ControlPlane, release("v1.36.3", etcd), release("", ""), nil, nil, "version-unknown", "v1.36.3 and unknown"},
		"from no version":            {hullmark.Worker, release("", ""), release("v1.36.3", etcd), nil, nil, "version-unknown", "unknown and v1.36.3"},
		"no etcd":                    {hullmark.ControlPlane, release("v1.36.3", etcd), release("v1.36.3", ""), nil, nil, "version-unknown", "etcd"},
		"neither says one":           {hullmark.ControlPlane, release("", ""), release("", ""), seen(""), nil, "", ""},
		"of another image":           {hullmark.ControlPlane, release("", ""), Release{Image: "other"}, nil, nil, "version-unknown", ""},
		"a server too far behind":    {hullmark.ControlPlane, release("v1.36.3", etcd), release("v1.37.1", etcd), seen("v1.36.3", "v1.35.9"), nil, CodeSkew, "b is further away"},
		"a server too far ahead":     {hullmark.ControlPlane, release("v1.35.3", etcd), release("v1.35.4", etcd), seen("v1.37.0"), nil, CodeSkew, "a is further away"},
		"a kubelet too old":          {hullmark.ControlPlane, release("v1.35.4", etcd), release("v1.36.3", etcd), nil, seen("v1.35.4", "v1.32.9"), CodeSkew, "kubelet of b"},
		"a kubelet that is newer":    {hullmark.ControlPlane, release("v1.35.4", etcd), release("v1.35.5", etcd), nil, seen("v1.36.0"), CodeSkew, "kubelet of a"},
		"a kubelet nobody knows":     {hullmark.ControlPlane, release("v1.35.4", etcd), release("v1.36.3", etcd), nil, seen(""), "version-unknown", "kubelet of a"},
		"a worker after all":         {hullmark.Worker, release("v1.35.4", etcd), release("v1.36.3", etcd), seen("v1.36.3", "v1.36.0"), seen("v1.30.0"), "", ""},
		"a worker before the last":   {hullmark.Worker, release("v1.35.4", etcd), release("v1.36.3", etcd), seen("v1.36.3", "v1.35.4"), nil, CodeSkew, "newer than the API server of b"},
		"a worker three behind":      {hullmark.Worker, release("v1.32.4", etcd), release("v1.33.3", etcd), seen("v1.36.3"), nil, "", ""},
		"a worker that stays behind": {hullmark.Worker, release("v1.31.4", etcd), release("v1.32.3", etcd), seen("v1.36.3"), nil, CodeSkew, "too old for the API server of a (expected 1.33 to 1.36, got v1.32.3)"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, Step{Role: c.role, From: c.from, To: c.to, Servers: c.servers, Kubelets: c.kubelets}.Judge(), c.code, c.says)
		})
	}
}

func TestSkewOfUnknownVersions(t *testing.T) {
	refused(t, Skew(hullmark.Worker, v(""), seen("", "")), "", "")
	refused(t, Skew(hullmark.Worker, v("v1.36.3"), seen("v1.36.3", "")), CodeSkew, "b's work together")
	refused(t, Skew(hullmark.ControlPlane, v(""), seen("v1.36.3")), CodeSkew, "got unknown")
	refused(t, Skew(hullmark.ControlPlane, v("v1.36.3"), nil), "", "")
}

func TestWayBack(t *testing.T) {
	from := release("v1.36.3", "v3.6.8")
	for name, c := range map[string]struct {
		to        Release
		committed bool
		moved     Moved
		says      string
	}{
		"on trial":                          {release("v1.35.4", "v3.6.8"), false, Moved{MinimumSVN: 3}, ""},
		"a patch":                           {release("v1.36.2", "v3.6.1"), true, Moved{KubeletConfig: v("v1.36.3")}, ""},
		"a minor release that is committed": {release("v1.35.4", "v3.6.8"), true, Moved{}, "v1.36.3 is committed"},
		"etcd, even on trial":               {release("v1.36.2", "v3.5.21"), false, Moved{}, "etcd's data is of v3.6.8"},
		"stored objects":                    {release("v1.36.2", "v3.6.8"), false, Moved{Storage: []string{"apps/deployments"}}, "does not read: apps/deployments"},
		"the kubelet's configuration":       {release("v1.35.4", "v3.6.8"), false, Moved{KubeletConfig: v("v1.36.3")}, "written by kubeadm v1.36.3"},
		"the policy":                        {release("v1.36.2", "v3.6.8"), false, Moved{MinimumSVN: 4}, "no security version below 4"},
	} {
		code := ""
		if c.says != "" {
			code = "rollback-refused"
		}
		t.Run(name, func(t *testing.T) { refused(t, Back(from, c.to, c.committed, c.moved), code, c.says) })
	}
	// All reasons are told at once.
	err := Back(from, release("v1.35.4", "v3.5.21"), true, Moved{MinimumSVN: 4})
	for _, says := range []string{"security version", "etcd", "is committed"} {
		refused(t, err, "rollback-refused", says)
	}
}

func TestStorageThatMoved(t *testing.T) {
	before := []Resource{
		{"apps", "v1", "Deployment", "deployments", storageHash("apps", "v1", "Deployment")},
		{"batch", "v1", "CronJob", "cronjobs", storageHash("batch", "v1", "CronJob")},
		{"x.io", "v1alpha1", "Thing", "things", storageHash("x.io", "v1alpha1", "Thing")},
		{"x.io", "v1beta1", "Thing", "things", storageHash("x.io", "v1alpha1", "Thing")},
		{"y.io", "v1beta1", "Other", "others", storageHash("y.io", "v1alpha1", "Other")},
		{"", "v1", "Binding", "bindings", ""},
	}
	now := []Resource{
		{"apps", "v1", "Deployment", "deployments", storageHash("apps", "v1", "Deployment")},
		{"batch", "v1", "CronJob", "cronjobs", storageHash("batch", "v2", "CronJob")}, // moved where it cannot be read
		{"batch", "v2", "CronJob", "cronjobs", storageHash("batch", "v2", "CronJob")},
		{"x.io", "v1beta1", "Thing", "things", storageHash("x.io", "v1beta1", "Thing")},  // moved where it can
		{"y.io", "v1beta1", "Other", "others", storageHash("y.io", "v1alpha1", "Other")}, // stays where it is not served
		{"z.io", "v1", "New", "news", storageHash("z.io", "v1", "New")},                  // was not there before
		{"", "v1", "Binding", "bindings", ""},
	}
	if got := Unreadable(before, now); len(got) != 1 || got[0] != "batch/cronjobs" {
		t.Errorf("got %q", got)
	}
	if got := Unreadable(before, before); len(got) != 0 {
		t.Errorf("nothing moved, got %q", got)
	}
	// The known answer is an API server's, for apps/v1 deployments.
	if got := storageHash("apps", "v1", "Deployment"); got != "8aSe+NMegvE=" {
		t.Errorf("got %s", got)
	}
}
