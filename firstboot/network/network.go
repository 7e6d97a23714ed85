// Package network turns what a node configuration says of the network into files for systemd-networkd: it finds the cards that the
// configuration chooses among those that a machine has, and writes what is made of them. It is pure: the agent looks at the machine,
// and writes the files.
package network

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// Link is a network interface that the machine has.
type Link struct {
	// Name is the kernel's.
	Name string `json:"name"`
	// Card says that it is a network card, and not made of others, nor a part of another card.
	Card bool `json:"card"`
	// MAC, Driver and Path are what a card is chosen by, as hullmark.Card has them; empty where the machine does not say it.
	MAC    string `json:"mac,omitempty"`
	Driver string `json:"driver,omitempty"`
	Path   string `json:"path,omitempty"`
	// Up says that it can send and receive.
	Up bool `json:"up"`
	// Addresses are those that other machines can reach.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// String shows a card with all that it can be chosen by.
func (l Link) String() string {
	text := "name " + l.Name
	for _, part := range [][2]string{{"mac", l.MAC}, {"driver", l.Driver}, {"path", l.Path}} {
		if part[1] != "" {
			text += ", " + part[0] + " " + part[1]
		}
	}
	return text
}

// is reports whether a card has what it is chosen by.
func (l Link) is(c hullmark.Card) bool {
	switch {
	case c.MAC != "":
		return l.MAC == c.MAC
	case c.Name != "":
		return l.Name == c.Name
	case c.Driver != "":
		return l.Driver == c.Driver
	}
	return l.Path == c.Path
}

// Plan says how the machine's interfaces become what its configuration says.
type Plan struct {
	config hullmark.NodeConfig
	// cards are the machine's by the names that the configuration has for them.
	cards map[string]Link
}

// Make finds the cards that the configuration chooses. Its error is a condition.
func Make(config hullmark.NodeConfig, links []Link) (Plan, error) {
	p := Plan{config: config, cards: map[string]Link{}}
	cards := slices.DeleteFunc(slices.Clone(links), func(l Link) bool { return !l.Card || !hullmark.ValidCardName(l.Name) })
	if len(config.Addresses) > 0 {
		return p, p.takeOnly(cards)
	}
	chosen := map[string]string{}
	for _, i := range config.Interfaces {
		if i.Card == nil {
			if slices.ContainsFunc(cards, func(l Link) bool { return l.Name == i.Name }) {
				return p, nameTaken(i.Name, cards)
			}
			continue
		}
		card, err := choose(i, cards)
		if err != nil {
			return p, err
		}
		if other := chosen[card.Name]; other != "" {
			return p, chosenTwice(other, i.Name, card, cards)
		}
		chosen[card.Name], p.cards[i.Name] = i.Name, card
	}
	return p, nil
}

// only is the name of the card that has the addresses of a configuration without interfaces.
const only = ""

// Chooses reports whether the configuration chooses cards at all.
func (p Plan) Chooses() bool { return len(p.config.Addresses) > 0 || len(p.config.Interfaces) > 0 }

// takeOnly takes the only card that there is.
func (p Plan) takeOnly(cards []Link) error {
	switch len(cards) {
	case 0:
		return missing("a network card for its addresses", cards)
	case 1:
		p.cards[only] = cards[0]
		return nil
	}
	return &hullmark.Condition{
		Code: "cards-several", Step: step, Title: "the configuration has addresses, and the machine several cards",
		Expected: "one card", Got: list(cards), Next: "say in the node configuration which card has which address (interfaces), and start the machine again",
	}
}

// choose returns the one card that an interface is.
func choose(i hullmark.Interface, cards []Link) (Link, error) {
	found := slices.DeleteFunc(slices.Clone(cards), func(l Link) bool { return !l.is(*i.Card) })
	switch len(found) {
	case 0:
		return Link{}, missing(i.Name+": "+i.Card.String(), cards)
	case 1:
		return found[0], nil
	}
	return Link{}, &hullmark.Condition{
		Code: "card-ambiguous", Step: step, Title: "several cards are what the configuration calls " + i.Name,
		Expected: "one card with " + i.Card.String(), Got: list(found), Next: "choose it by its mac or path in the node configuration, and start the machine again",
	}
}

// step is the agent's, in which the configuration is used.
const step = "CONFIG"

const codeMissing = "card-missing"

func missing(expected string, cards []Link) error {
	return &hullmark.Condition{
		Code: codeMissing, Step: step, Title: "the machine has no such network card as its configuration names", Expected: expected, Got: list(cards),
		Next: "plug the card in, or choose one of these in the node configuration and start the machine again", Retry: true,
	}
}

func chosenTwice(first, second string, card Link, cards []Link) error {
	return &hullmark.Condition{
		Code: "card-twice", Step: step, Title: fmt.Sprintf("the configuration calls one card both %s and %s", first, second),
		Expected: "two cards", Got: card.String() + ", of " + list(cards), Next: "choose another card for one of them in the node configuration, and start the machine again",
	}
}

func nameTaken(name string, cards []Link) error {
	return &hullmark.Condition{
		Code: "interface-name-taken", Step: step, Title: "the configuration makes an interface " + name + ", and a card has that name",
		Expected: "a name that no card has", Got: list(cards), Next: "give the interface another name in the node configuration, and start the machine again",
	}
}

// maxListed bounds how many cards a condition names.
const maxListed = 16

// list names cards in a line.
func list(cards []Link) string {
	if len(cards) == 0 {
		return "no network card"
	}
	var texts []string
	for n, l := range cards {
		if n == maxListed {
			texts = append(texts, fmt.Sprintf("and %d more", len(cards)-n))
			break
		}
		texts = append(texts, l.String())
	}
	return strings.Join(texts, "; ")
}

// Missing reports whether Make failed because a card is not there, which may yet come.
func Missing(err error) bool {
	var c *hullmark.Condition
	return errors.As(err, &c) && c.Code == codeMissing
}

// Own returns the addresses by which the node goes, as far as it has them by now: static ones as they are written, or else those that
// the network gave to the interface, IPv4 first. It is empty while the interface is not up, and where the configuration leaves open
// which interface that is.
func (p Plan) Own(links []Link) (own []netip.Addr) {
	i := p.config.NodeInterface()
	if i == nil {
		return nil
	}
	name := p.system(*i)
	at := slices.IndexFunc(links, func(l Link) bool { return l.Name == name })
	if at < 0 || !links[at].Up {
		return nil
	}
	has := links[at].Addresses
	if len(i.Addresses) == 0 {
		for _, prefix := range has {
			own = append(own, prefix.Addr())
		}
		slices.SortFunc(own, func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b)) })
		return own
	}
	for _, text := range i.Addresses {
		if prefix, err := netip.ParsePrefix(text); err == nil && slices.Contains(has, prefix) {
			own = append(own, prefix.Addr())
		}
	}
	return own
}

// Online reports whether the node can be reached at an address of its own.
func (p Plan) Online(links []Link) bool {
	if i := p.config.NodeInterface(); i != nil {
		return len(p.Own(links)) >= max(1, len(i.Addresses))
	}
	return slices.ContainsFunc(links, func(l Link) bool { return l.Up && len(l.Addresses) > 0 })
}

// KubeletAddresses are those that the kubelet is to name, as its flag has them: the first static address of each family, IPv4 first, or
// the first that the network gave. Where the configuration leaves it open, there are none.
func (p Plan) KubeletAddresses(links []Link) string {
	own := p.Own(links)
	if len(own) == 0 {
		return ""
	}
	if len(p.config.NodeInterface().Addresses) == 0 {
		return own[0].String()
	}
	var named []string
	for _, isFamily := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		if i := slices.IndexFunc(own, isFamily); i >= 0 {
			named = append(named, own[i].String())
		}
	}
	return strings.Join(named, ",")
}

// system is the name of an interface in the system.
func (p Plan) system(i hullmark.Interface) string {
	if i.Card != nil {
		return p.cards[i.Name].Name
	}
	return i.Name
}
