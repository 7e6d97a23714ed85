package kubeadm

import (
	"strings"
	"testing"
)

// A machine's provider ID is a flag of its kubelet, whatever a template says.
func TestProviderIDIsTheMachines(t *testing.T) {
	template := func(flags string) []byte {
		return []byte("apiVersion: " + kubeadmAPI + "\nkind: JoinConfiguration\nnodeRegistration: {kubeletExtraArgs: [" + flags + "]}\ndiscovery: {}\n")
	}
	for name, c := range map[string]struct {
		template []byte
		id       string
		want     int
	}{
		"none":                  {nil, "", 0},
		"ours":                  {nil, "test:///1", 1},
		"beside another flag":   {template(`{name: v, value: "4"}`), "test:///1", 1},
		"in the place of it":    {template(`{name: provider-id, value: "test:///9"}`), "test:///1", 1},
		"by its other spelling": {template(`{name: provider_id, value: "test:///9"}`), "test:///1", 1},
		"none of its own":       {template(`{name: provider-id, value: "test:///9"}`), "", 0},
	} {
		p := joinParams(t)
		p.Template, p.ProviderID = c.template, c.id
		documents, _, err := JoinDocuments(p)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text := string(documents)
		if strings.Contains(text, "test:///9") || strings.Count(text, "name: provider-id\n    value: test:///1\n") != c.want || strings.Contains(name, "another") != strings.Contains(text, "name: v\n") {
			t.Errorf("%s:\n%s", name, text)
		}
		if err := CheckProviderID(documents); err != nil {
			t.Errorf("%s: a node refuses it: %v", name, err)
		}
	}
	p := joinParams(t)
	p.ProviderID = "test:///1 --anonymous-auth=true"
	if _, _, err := JoinDocuments(p); err == nil || !strings.Contains(err.Error(), "provider ID") {
		t.Errorf("more than a provider ID: %v", err)
	}
	p.ProviderID, p.Template = "", []byte("apiVersion: "+kubeadmAPI+"\nkind: JoinConfiguration\nnodeRegistration: {kubeletExtraArgs: x}\ndiscovery: {}\n")
	if _, _, err := JoinDocuments(p); err == nil || !strings.Contains(err.Error(), "kubeletExtraArgs") {
		t.Errorf("no list of flags: %v", err)
	}
	for name, flags := range map[string]string{
		"two":             `{name: provider-id, value: "test:///1"}, {name: provider_id, value: "test:///2"}`,
		"no provider ID":  `{name: provider-id, value: worker}`,
		"more than one":   `{name: provider-id, value: "test:///1 --v=4"}`,
		"a line":          `{name: provider-id, value: "test:///1\n"}`,
		"nothing":         `{name: provider-id, value: ""}`,
		"one, as control": `{name: provider-id, value: "test:///1"}`,
	} {
		if err := CheckProviderID(template(flags)); (err == nil) != strings.Contains(name, "control") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
