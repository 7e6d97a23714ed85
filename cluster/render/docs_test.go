package render

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/kubeadm"
)

// TestDocs holds docs/cluster-document.md to the code: its example is the one that TestRender renders, and each field and each
// thing that Hullmark owns is named.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/cluster-document.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	_, rest, _ := strings.Cut(page, "```yaml\n")
	if example, _, _ := strings.Cut(rest, "```\n"); example != string(sample(t, "rich")) {
		t.Error("the example is not testdata/rich.yaml")
	}
	for _, structure := range []any{Cluster{}, ControlPlane{}, Network{}, Pool{}, Member{}, Taint{}, File{}, Addon{}, Surroundings{}, Registry{}, Mirror{}, Journal{}} {
		for field := range reflect.TypeOf(structure).Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+name+".") && !strings.Contains(page, "."+name+"`") {
				t.Errorf("field %s of %T is not described", name, structure)
			}
		}
	}
	for name, k := range kubeadm.Kinds {
		for field := range k.Owned {
			if !strings.Contains(page, "`"+field+"`") {
				t.Errorf("%s: that %s is owned is not said", name, field)
			}
		}
		for list, arguments := range k.Arguments {
			for argument := range arguments {
				if !strings.Contains(page, "`"+argument+"`") {
					t.Errorf("%s: that %s of %s is owned is not said", name, argument, list)
				}
			}
		}
	}
}
