package step

import (
	"io"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

const metrics = `# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested.
# TYPE apiserver_requested_deprecated_apis gauge
apiserver_requested_deprecated_apis{group="",removed_release="",resource="componentstatuses",subresource="",version="v1"} 1
apiserver_requested_deprecated_apis{group="networking.k8s.io",removed_release="1.37",resource="ipaddresses",subresource="status",version="v1beta1"} 1
apiserver_requested_deprecated_apis{group="storage.k8s.io",removed_release="1.40",resource="volumeattributesclasses",subresource="",version="v1beta1"} 1
apiserver_request_total{code="200",component="apiserver",resource="pods"} 12
`

func TestRequestedAPIs(t *testing.T) {
	requested, err := RequestedAPIs(strings.NewReader(metrics + metrics))
	if err != nil || len(requested) != 3 {
		t.Fatalf("got %v, %v", requested, err)
	}
	if got := requested[1].String(); got != "networking.k8s.io/v1beta1/ipaddresses/status" || requested[0].String() != "v1/componentstatuses" {
		t.Errorf("got %s", got)
	}
	refused(t, RemovedAPIs(requested, v("v1.36.3")), "", "")
	refused(t, RemovedAPIs(requested, v("v1.37.0")), "apis-removed", "got networking.k8s.io/v1beta1/ipaddresses/status")
	refused(t, RemovedAPIs(requested, v("v1.41.0")), "apis-removed", "networking.k8s.io/v1beta1/ipaddresses/status, storage.k8s.io/v1beta1/volumeattributesclasses")
}

func TestMetricsThatAreNone(t *testing.T) {
	for name, text := range map[string]string{
		"no end":           `apiserver_requested_deprecated_apis{group="a"`,
		"a label too many": `apiserver_requested_deprecated_apis{group="a",version="v1",resource="b",user="c"} 1`,
		"a label twice":    `apiserver_requested_deprecated_apis{group="a",group="a",version="v1",resource="b"} 1`,
		"no resource":      `apiserver_requested_deprecated_apis{group="a",version="v1"} 1`,
		"no release":       `apiserver_requested_deprecated_apis{version="v1",resource="b",removed_release="soon"} 1`,
		"an escape":        `apiserver_requested_deprecated_apis{version="v1",resource="b\"c"} 1`,
		"a long name":      `apiserver_requested_deprecated_apis{version="v1",resource="` + strings.Repeat("b", 254) + `"} 1`,
		"a long line":      strings.Repeat("a", maxLine+1),
	} {
		if got, err := RequestedAPIs(strings.NewReader(text)); err == nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
	var many strings.Builder
	for n := range maxAPIs + 1 {
		many.WriteString(`apiserver_requested_deprecated_apis{version="v1",resource="` + strings.Repeat("b", n%200+1) + strings.Repeat("c", n/200) + "\"} 1\n")
	}
	if _, err := RequestedAPIs(strings.NewReader(many.String())); err == nil || !strings.Contains(err.Error(), "more than 1024") {
		t.Errorf("too many: %v", err)
	}
	if _, err := RequestedAPIs(io.LimitReader(lines{}, MaxMetrics+2)); err == nil || !strings.Contains(err.Error(), "more than 268435456 bytes") {
		t.Errorf("too long: %v", err)
	}
}

// lines are without end.
type lines struct{}

func (lines) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
		if i%4096 == 0 {
			b[i] = '\n'
		}
	}
	return len(b), nil
}

// FuzzRequestedAPIs wants what is read to be bounded, and named by what a refusal can show.
func FuzzRequestedAPIs(f *testing.F) {
	f.Add(metrics)
	f.Add(`apiserver_requested_deprecated_apis{version="v1",resource="b",removed_release="1.22"} 1`)
	f.Fuzz(func(t *testing.T, text string) {
		requested, err := RequestedAPIs(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, a := range requested {
			if a.Version == "" || a.Resource == "" || len(a.String()) > 4*maxAPIName+3 || strings.ContainsAny(a.String(), "\n\"") {
				t.Errorf("%+v", a)
			}
		}
		_ = RemovedAPIs(requested, hullmark.Version{Major: 1, Minor: 40})
	})
}
