package main

import (
	"strings"
	"testing"

	"github.com/hullmark/hullmark/tools/capi/infrastructure"
)

func TestFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"all":          {[]string{"--folder", "machines", "--program", "/bin/true"}, ""},
		"no folder":    {[]string{"--program", "/bin/true"}, "--folder"},
		"no program":   {[]string{"--folder", "machines", "--program", "/nowhere/hullmark"}, "make bin/hullmark"},
		"an argument":  {[]string{"--folder", "machines", "--program", "/bin/true", "more"}, "no arguments"},
		"unknown":      {[]string{"--nothing"}, "unknown flag"},
		"only printed": {[]string{"--crds"}, ""},
	} {
		s, err := parse(c.args)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if p, ok := s.options.Processes.(infrastructure.Hullmark); name == "all" && (!ok || p.Program != "/bin/true") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestDefinitions(t *testing.T) {
	text, err := infrastructure.CRDs()
	if err != nil || strings.Count(string(text), "\nkind: CustomResourceDefinition\n") != 4 || strings.Count(string(text), "cluster.x-k8s.io/v1beta2: v1alpha1") != 4 {
		t.Errorf("%v\n%s", err, text)
	}
}
