package firstboot

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark"
)

func TestSentinels(t *testing.T) {
	dir := t.TempDir()
	s := &Status{File: filepath.Join(t.TempDir(), "status.json"), Sentinels: dir, Console: io.Discard, Log: io.Discard, Notify: func(string) {}}
	final := &hullmark.Condition{Code: "disk-foreign", Title: "t", Next: "n"}
	transient := &hullmark.Condition{Code: "busy", Title: "t", Next: "n", Retry: true}
	for i, step := range []struct {
		do   func()
		want map[string]string
	}{
		{func() { s.Enter(StepAttest) }, map[string]string{}},
		{func() { s.Fail(final) }, map[string]string{sentinelFailure: "disk-foreign\n"}},
		{func() { s.Fail(transient) }, map[string]string{}},
		{func() { s.Fail(&hullmark.Condition{Code: "step-failed", Title: "t", Because: final}) }, map[string]string{sentinelFailure: "disk-foreign\n"}},
		{s.Finish, map[string]string{sentinelSuccess: "success\n"}},
		{func() { s.Warn(final) }, map[string]string{sentinelSuccess: "success\n"}},
		{func() { s.Fail(final) }, map[string]string{sentinelFailure: "disk-foreign\n"}},
	} {
		step.do()
		got := map[string]string{}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			got[e.Name()] = string(text)
		}
		if !maps.Equal(got, step.want) {
			t.Errorf("step %d: %q, want %q", i, slices.Collect(maps.Keys(got)), step.want)
		}
	}
}
