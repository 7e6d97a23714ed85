package measurements

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

func cloud() Group {
	return Group{Name: "cloud", Authorities: [][]byte{[]byte("a certificate")}, Subject: []Attribute{{Type: "OU", Value: "my-project"}, {Type: "O", Value: "Cloud, Inc."}}, Max: 3}
}

func grouped(change func(*Policy)) Policy {
	p := Policy{Version: 1, Groups: []Group{cloud()}, Denied: []hullmark.EKID{{9}}}
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
	if err != nil || !reflect.DeepEqual(again.Groups, p.Groups) || !again.Denies(hullmark.EKID{9}) || again.Denies(hullmark.EKID{8}) {
		t.Errorf("%+v, %v", again, err)
	}
	member := cloud().Member(hullmark.EKID{0xab, 0xcd, 1})
	want := Member{EKID: hullmark.EKID{0xab, 0xcd, 1}, Role: hullmark.Worker, Name: "cloud-vpgqcaaaaaaaaaaa"}
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
	if len(without.Members) != 0 || !without.Denies(member.EKID) || len(without.Without(member.EKID).Denied) != 1 {
		t.Errorf("without the machine the policy is %+v", without)
	}
	if group, ok := GroupOf(member.Name, member.EKID); !ok || group != "cloud" {
		t.Errorf("%s is of group %q, %v", member.Name, group, ok)
	}
	if group, ok := GroupOf("cloud-1", member.EKID); ok {
		t.Errorf("cloud-1 is of group %q", group)
	}
	longest := Group{Name: strings.Repeat("a", maxGroupName)}.Member(hullmark.EKID{})
	if !hullmark.ValidNodeName(longest.Name) {
		t.Errorf("%s is no node's name", longest.Name)
	}
}

func TestGroupsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Policy)
		says   string
	}{
		"no name":                 {func(p *Policy) { p.Groups[0].Name = "" }, "want a DNS label"},
		"a name that is too long": {func(p *Policy) { p.Groups[0].Name = strings.Repeat("a", maxGroupName+1) }, "want a DNS label"},
		"a name of another form":  {func(p *Policy) { p.Groups[0].Name = "Cloud" }, "want a DNS label"},
		"two of one name":         {func(p *Policy) { p.Groups = append(p.Groups, cloud()) }, "two of this name"},
		"nobody":                  {func(p *Policy) { p.Groups[0].Max = 0 }, "max: 0"},
		"more than all":           {func(p *Policy) { p.Groups[0].Max = maxMembers + 1 }, "max: 10001"},
		"no authority":            {func(p *Policy) { p.Groups[0].Authorities = nil }, "authorities and roots: 0 and 0"},
		"a large authority":       {func(p *Policy) { p.Groups[0].Authorities[0] = make([]byte, maxAuthority+1) }, "certificates of at most"},
		"an empty authority":      {func(p *Policy) { p.Groups[0].Authorities[0] = nil }, "certificates of at most"},
		"many authorities":        {func(p *Policy) { p.Groups[0].Authorities = authorities(maxAuthorities + 1) }, "authorities and roots: 9 and 0"},
		"a value of no text":      {func(p *Policy) { p.Groups[0].Subject[0].Value = "\xff" }, "a value of at most"},
		"groups that overlap": {func(p *Policy) {
			other := cloud()
			other.Name, other.Subject = "other", []Attribute{{Type: "OU", Value: "my-project"}, {Type: "L", Value: "here"}}
			p.Groups = append(p.Groups, other)
		}, "could both admit"},
		"everybody":                {func(p *Policy) { p.Groups[0].Subject = nil }, "at least one attribute"},
		"many attributes":          {func(p *Policy) { p.Groups[0].Subject = slices.Repeat(cloud().Subject, maxSubject) }, "16 attributes"},
		"an unknown attribute":     {func(p *Policy) { p.Groups[0].Subject[0].Type = "UID" }, "want CN, O, OU, L, ST or C"},
		"one attribute twice":      {func(p *Policy) { p.Groups[0].Subject[0].Type = "O" }, "O is asked for twice"},
		"an empty value":           {func(p *Policy) { p.Groups[0].Subject[0].Value = "" }, "a value of at most"},
		"a long value":             {func(p *Policy) { p.Groups[0].Subject[0].Value = strings.Repeat("a", maxValue+1) }, "a value of at most"},
		"a value of two lines":     {func(p *Policy) { p.Groups[0].Subject[0].Value = "a\nb" }, "a value of at most"},
		"a pool that is not there": {func(p *Policy) { p.Groups[0].Pool = "gpu" }, "there is no pool"},
		"a machine denied twice":   {func(p *Policy) { p.Denied = append(p.Denied, p.Denied[0]) }, "listed twice"},
		"too many":                 {func(p *Policy) { p.Groups = groups(maxGroups + 1) }, "groups: 17"},
		"too many denied":          {func(p *Policy) { p.Denied = machines(maxMembers + 1) }, "denied: 10001"},
	} {
		if _, err := grouped(c.change).Encode(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if _, err := grouped(func(p *Policy) {
		p.Groups, p.Denied = groups(maxGroups), machines(maxMembers)
		p.Groups[0].Authorities = authorities(maxAuthorities)
	}).Encode(); err != nil {
		t.Errorf("as many as may be: %v", err)
	}
}

// groups returns groups that an attribute tells apart.
func groups(n int) (all []Group) {
	for i := range n {
		g := cloud()
		g.Name, g.Subject[0].Value = fmt.Sprintf("cloud-%d", i), fmt.Sprint(i)
		all = append(all, g)
	}
	return all
}

func authorities(n int) [][]byte { return slices.Repeat(cloud().Authorities, n) }

func machines(n int) (all []hullmark.EKID) {
	for i := range n {
		all = append(all, hullmark.EKID{byte(i), byte(i >> 8)})
	}
	return all
}
