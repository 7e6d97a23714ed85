package inspect

import (
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/pcrs"
)

// An image without Kubernetes was not made of what pins it.
func TestDependenciesAreThoseOfTheImage(t *testing.T) {
	var b Build
	b.Lock.Go = "go1.26.0"
	b.Lock.Kubernetes.Sums = []lock.GoSum{{Dir: "tools/kubernetes", SHA256: strings.Repeat("ab", 32)}}
	for kubernetes, want := range map[bool]int{false: 0, true: 1} {
		b.Kubernetes = kubernetes
		found, err := b.dependencies(pcrs.Digest("lock"))
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, d := range found {
			if d.Name == "tools/kubernetes/go.sum" {
				got++
			}
		}
		if got != want {
			t.Errorf("with Kubernetes %t, go.sum stands in it %d times, want %d", kubernetes, got, want)
		}
	}
}
