package kubeadmspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// agree refuses what a control plane's spec says of its first node and of the others, if it differs where a pool has one
// setting for all.
func (m *mapping) agree() {
	first, _ := tree(m.pieces, true)["pool"].(map[string]any)
	others, _ := tree(m.pieces, false)["pool"].(map[string]any)
	for _, one := range []struct{ name, field string }{{"labels", "nodeRegistration.kubeletExtraArgs"}, {"taints", "nodeRegistration.taints"}} {
		if !reflect.DeepEqual(first[one.name], others[one.name]) {
			m.refuse(place{field: "initConfiguration." + one.field}, fmt.Sprintf("a pool has the same %s for all of its nodes: say the same here and in joinConfiguration.%s", one.name, one.field))
		}
	}
	m.pieces = slices.DeleteFunc(m.pieces, func(p piece) bool { return p.agrees })
}

// tree puts pieces together, those that are there already or the others.
func tree(pieces []piece, agrees bool) map[string]any {
	var root any = map[string]any{}
	for _, p := range pieces {
		if p.agrees == agrees {
			root = set(root, p.to, p.value)
		}
	}
	return compact(root).(map[string]any)
}

// set returns an object or a list with a value at the end of some steps.
func set(into any, to []any, value any) any {
	if len(to) == 0 {
		return value
	}
	switch step := to[0].(type) {
	case int:
		list, _ := into.([]any)
		for len(list) <= step {
			list = append(list, nil)
		}
		list[step] = set(list[step], to[1:], value)
		return list
	case string:
		object, ok := into.(map[string]any)
		if !ok {
			object = map[string]any{}
		}
		object[step] = set(object[step], to[1:], value)
		return object
	}
	return into
}

// compact takes out the elements of lists that stayed empty.
func compact(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, below := range value {
			value[name] = compact(below)
		}
	case []any:
		list := slices.DeleteFunc(value, func(element any) bool { return element == nil })
		for i, element := range list {
			list[i] = compact(element)
		}
		return list
	}
	return value
}

// judge returns the pool that the pieces make, and refuses those that the renderer does not take.
func (m *mapping) judge() Pool {
	m.pieces = slices.DeleteFunc(m.pieces, func(p piece) bool { return m.broken[p.unit] })
	for range maxRefusals {
		if pool, err := m.pool(m.pieces); err == nil {
			return pool
		}
		m.refuseFirst()
	}
	return Pool{}
}

// refuseFirst finds the first unit with which the pieces up to there are not taken, refuses it, and leaves it out. The pieces
// of a unit follow each other.
func (m *mapping) refuseFirst() {
	var ends []int
	for i, p := range m.pieces {
		if i+1 == len(m.pieces) || m.pieces[i+1].unit != p.unit {
			ends = append(ends, i+1)
		}
	}
	upTo := func(i int) error {
		_, err := m.pool(m.pieces[:ends[i]])
		return err
	}
	i := sort.Search(len(ends)-1, func(i int) bool { return upTo(i) != nil })
	unit := m.pieces[ends[i]-1].unit
	m.refuse(place{field: unit, unit: unit}, reason(upTo(i)))
	m.pieces = slices.DeleteFunc(m.pieces, func(p piece) bool { return p.unit == unit })
}

// around is what the renderer says of places in our example, which the reader does not know. A number after it is of the whole.
var around = regexp.MustCompile(`^(?:cluster document: |render: |pools\[\d+\] \([a-z]+\): |overrides\[\d+\] \([A-Za-z]+\): |node config: )+([^0-9])`)

// instead says in Cluster API's words what to do instead.
var instead = strings.NewReplacer("use the pool's taints", "use nodeRegistration.taints", "use the member's name", "the node has its Machine's name")

// reason says why the renderer refuses something.
func reason(err error) string {
	return instead.Replace(around.ReplaceAllString(err.Error(), "$1"))
}

// pool makes pieces into a Pool, and renders a document with it.
func (m *mapping) pool(pieces []piece) (p Pool, err error) {
	root := tree(pieces, false)
	text, err := json.Marshal(root)
	if err != nil {
		return p, err
	}
	var parts struct {
		Pool         render.Pool         `json:"pool"`
		ControlPlane render.ControlPlane `json:"controlPlane"`
		TimeServers  []string            `json:"timeServers"`
	}
	if err := json.Unmarshal(text, &parts); err != nil {
		return p, err
	}
	p = Pool{Pool: parts.Pool, SANs: parts.ControlPlane.SANs, TimeServers: parts.TimeServers}
	p.Pool.Role = hullmark.Worker
	if m.controlPlane {
		p.Pool.Role = hullmark.ControlPlane
	}
	p.Pool.Overrides = override(root, "JoinConfiguration")
	p.Overrides = slices.Concat(override(root, "ClusterConfiguration"), override(root, "InitConfiguration"))
	return p, p.check()
}

// override returns what is said of a document of kubeadm, if anything is.
func override(root map[string]any, kind string) []render.Override {
	fields, ok := root[kind].(map[string]any)
	if !ok {
		return nil
	}
	o := render.Override{"apiVersion": kubeadm.Kinds[kind].API, "kind": kind}
	maps.Copy(o, fields)
	return []render.Override{o}
}

// check renders an example of a document with the pool.
func (p Pool) check() error {
	text, err := json.Marshal(p.example())
	if err != nil {
		return err
	}
	document, err := render.Parse(text)
	if err != nil {
		return err
	}
	_, err = render.Render(document, measurements.Policy{})
	return err
}

// example is a cluster document that holds nothing else that matters.
func (p Pool) example() render.Cluster {
	pool, first := p.Pool, render.Pool{Role: hullmark.ControlPlane}
	pool.Name, pool.StateDisk.Serial = "pool", "state"
	first.Name, first.StateDisk.Serial = "first", "state"
	member := []render.Member{{Name: "example", EKID: hullmark.EKID{1}}}
	c := render.Cluster{
		Schema: render.Schema, Root: hullmark.ClusterRoot{1}, KubernetesVersion: kubeadm.Version,
		ControlPlane: render.ControlPlane{Endpoint: "192.0.2.1:6443", AdvertiseAddress: "192.0.2.1", SANs: p.SANs},
		Surroundings: render.Surroundings{TimeServers: p.TimeServers}, Overrides: p.Overrides,
	}
	if pool.Role == hullmark.ControlPlane {
		pool.Members = member
		c.Pools = []render.Pool{pool}
		return c
	}
	first.Members = member
	c.Pools = []render.Pool{first, pool}
	return c
}
