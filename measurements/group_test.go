package measurements

import (
	"reflect"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

func cloud() Group {
	return Group{Name: "cloud", Authorities: [][]byte{[]byte("a certificate")}, Subject: []Attribute{{Type: "OU", Value: "my-project"}, {Type: "O", Value: "Cloud, Inc."}}, Max: 3}
}

func grouped(change func(*Policy)) Policy {
	p := Policy{Version: 1, Groups: []Group{cloud()}, Barred: []hullmark.NodeID{{9}}}
	change(&p)
	return p
}

func TestGroupsKeepTheirForm(t *testing.T) {
	p := grouped(func(*Policy) {})
	encoded, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParsePolicy(encoded)
	if err != nil || !reflect.DeepEqual(again.Groups, p.Groups) || !again.Bars(hullmark.NodeID{9}) || again.Bars(hullmark.NodeID{8}) {
		t.Errorf("%+v, %v", again, err)
	}
	member := cloud().Member(hullmark.NodeID{0xab, 0xcd, 1})
	want := Member{EKID: hullmark.NodeID{0xab, 0xcd, 1}, Role: hullmark.Worker, Name: "cloud-vpgqcaaaaaaaaaaa"}
	if member != want {
		t.Errorf("the machine's rule is %+v, want %+v", member, want)
	}
	apart := cloud()
	apart.Name, apart.Subject = "other", []Attribute{{Type: "OU", Value: "another-project"}}
	p.Groups = append(p.Groups, apart)
	if _, err := p.Encode(); err != nil {
		t.Errorf("groups that an attribute tells apart: %v", err)
	}
	without := Policy{Version: 1, Members: []Member{member}}.Without(member.EKID)
	if len(without.Members) != 0 || !without.Bars(member.EKID) || len(without.Without(member.EKID).Barred) != 1 {
		t.Errorf("without the machine the policy is %+v", without)
	}
	if group, ok := GroupOf(member.Name, member.EKID); !ok || group != "cloud" {
		t.Errorf("%s is of group %q, %v", member.Name, group, ok)
	}
	if group, ok := GroupOf("cloud-1", member.EKID); ok {
		t.Errorf("cloud-1 is of group %q", group)
	}
	longest := Group{Name: strings.Repeat("a", maxGroupName)}.Member(hullmark.NodeID{})
	if !hullmark.ValidNodeName(longest.Name) {
		t.Errorf("%s is no node's name", longest.Name)
	}
}

func TestGroupsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Policy){
		"no name":                 func(p *Policy) { p.Groups[0].Name = "" },
		"a name that is too long": func(p *Policy) { p.Groups[0].Name = strings.Repeat("a", maxGroupName+1) },
		"a name of another form":  func(p *Policy) { p.Groups[0].Name = "Cloud" },
		"two of one name":         func(p *Policy) { p.Groups = append(p.Groups, cloud()) },
		"nobody":                  func(p *Policy) { p.Groups[0].Max = 0 },
		"more than all":           func(p *Policy) { p.Groups[0].Max = maxMembers + 1 },
		"no authority":            func(p *Policy) { p.Groups[0].Authorities = nil },
		"a large authority":       func(p *Policy) { p.Groups[0].Authorities[0] = make([]byte, maxAuthority+1) },
		"an empty authority":      func(p *Policy) { p.Groups[0].Authorities[0] = nil },
		"many authorities":        func(p *Policy) { p.Groups[0].Authorities = make([][]byte, maxAuthorities+1) },
		"a value of no text":      func(p *Policy) { p.Groups[0].Subject[0].Value = "\xff" },
		"groups that overlap": func(p *Policy) {
			other := cloud()
			other.Name, other.Subject = "other", []Attribute{{Type: "OU", Value: "my-project"}, {Type: "L", Value: "here"}}
			p.Groups = append(p.Groups, other)
		},
		"everybody":                func(p *Policy) { p.Groups[0].Subject = nil },
		"an unknown attribute":     func(p *Policy) { p.Groups[0].Subject[0].Type = "UID" },
		"one attribute twice":      func(p *Policy) { p.Groups[0].Subject[0].Type = "O" },
		"an empty value":           func(p *Policy) { p.Groups[0].Subject[0].Value = "" },
		"a value of two lines":     func(p *Policy) { p.Groups[0].Subject[0].Value = "a\nb" },
		"a pool that is not there": func(p *Policy) { p.Groups[0].Pool = "gpu" },
		"a machine barred twice":   func(p *Policy) { p.Barred = append(p.Barred, p.Barred[0]) },
		"too many":                 func(p *Policy) { p.Groups = make([]Group, maxGroups+1) },
	} {
		if _, err := grouped(change).Encode(); err == nil {
			t.Errorf("%s: encoded without an error", name)
		}
	}
}
