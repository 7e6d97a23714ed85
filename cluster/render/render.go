package render

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// The names of what Render makes for the whole cluster.
const (
	// InitFile holds the documents of kubeadm init for the first node.
	InitFile = "init.yaml"
	// PolicyFile holds the draft of the policy.
	PolicyFile = "policy.json"
	// joinFile holds a pool's JoinConfiguration, in the pool's folder.
	joinFile = "join.yaml"
	// configFile holds a NodeConfig, in the folder of a pool or a member.
	configFile = "node-config.json"
	// placedFile holds a pool's files and hooks, in the pool's folder.
	placedFile = "files.yaml"
)

// servicePort is where join services listen (attest.JoinPort).
const servicePort = "7444"

// Rendered is one file of what a cluster document says.
type Rendered struct {
	// Name is its path, relative, with slashes.
	Name    string
	Content []byte
	// Kubeadm says that kubeadm can judge it.
	Kubeadm bool
}

// Render writes out everything that a document which Parse returned stands for, in the order of the names. policy is the one in
// force, whose documents and exceptions the draft keeps, or the zero value.
func Render(c Cluster, policy measurements.Policy) ([]Rendered, error) {
	init, err := c.init()
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	draft, err := c.draft(policy)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	files := []Rendered{{Name: InitFile, Content: init, Kubeadm: true}, {Name: PolicyFile, Content: draft}}
	for i, p := range c.Pools {
		more, err := c.pool(p)
		if err != nil {
			return nil, fmt.Errorf("render: pools[%d] (%s): %w", i, p.Name, err)
		}
		files = append(files, more...)
	}
	slices.SortFunc(files, func(a, b Rendered) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}

// init writes the first node's documents.
func (c *Cluster) init() ([]byte, error) {
	parameters, err := c.parameters()
	if err != nil {
		return nil, err
	}
	text, err := kubeadm.InitDocuments(parameters)
	if err != nil {
		return nil, err
	}
	documents, err := decode(text)
	if err != nil {
		return nil, err
	}
	register(documents["InitConfiguration"], c.Pools[c.firstPool()])
	if err := apply(documents, c.Overrides); err != nil {
		return nil, err
	}
	return encode("", documents["InitConfiguration"], documents["ClusterConfiguration"], documents["KubeletConfiguration"])
}

// parameters are what our own documents are made of.
func (c *Cluster) parameters() (p kubeadm.Params, err error) {
	first, _ := c.first()
	p = kubeadm.Params{NodeName: first.Name, ProviderID: first.ProviderID, ClusterName: c.Name, Endpoint: c.ControlPlane.Endpoint, SANs: c.ControlPlane.SANs, Profile: c.Profile, Several: c.controlPlanes() > 1}
	if p.AdvertiseAddress, err = netip.ParseAddr(c.ControlPlane.AdvertiseAddress); err != nil {
		return p, fmt.Errorf("controlPlane.advertiseAddress: %w", err)
	}
	if p.PodSubnet, err = kubeadm.ParseSubnets(c.Network.PodSubnet); err != nil {
		return p, fmt.Errorf("network.podSubnet: %w", err)
	}
	if p.ServiceSubnet, err = kubeadm.ParseSubnets(c.Network.ServiceSubnet); err != nil {
		return p, fmt.Errorf("network.serviceSubnet: %w", err)
	}
	return p, c.checkAddresses(p)
}

// checkAddresses refuses static addresses of machines that pods or services have, or that are of one family alone where the
// networks are of both.
func (c *Cluster) checkAddresses(p kubeadm.Params) error {
	for i, pool := range c.Pools {
		for _, m := range pool.Members {
			families := map[bool]bool{}
			own := pool.config(m).OwnAddresses()
			for _, text := range own {
				static, err := netip.ParsePrefix(text)
				if err != nil {
					continue // The node configuration's own check tells of that.
				}
				if err := p.CheckNodeAddress(static.Addr()); err != nil {
					return fmt.Errorf("pools[%d] (%s): %s: %w", i, pool.Name, m.Name, err)
				}
				families[static.Addr().Is4()] = true
			}
			if len(own) > 0 && len(p.ServiceSubnet) > len(families) {
				return fmt.Errorf("pools[%d] (%s): %s: addresses %s: the cluster's networks are of both families, so want one of each", i, pool.Name, m.Name, strings.Join(own, ", "))
			}
		}
	}
	return nil
}

// register writes a pool's labels and taints into a document of one of its nodes.
func register(document map[string]any, p Pool) {
	registration, ok := document["nodeRegistration"].(map[string]any)
	if !ok {
		registration = map[string]any{}
		document["nodeRegistration"] = registration
	}
	if len(p.Labels) > 0 {
		ours, _ := registration["kubeletExtraArgs"].([]any)
		registration["kubeletExtraArgs"] = append(ours, map[string]any{"name": "node-labels", "value": nodeLabels(p.Labels)})
	}
	if p.Taints == nil {
		return
	}
	taints := []any{}
	for _, t := range *p.Taints {
		taint := map[string]any{"key": t.Key, "effect": t.Effect}
		if t.Value != "" {
			taint["value"] = t.Value
		}
		taints = append(taints, taint)
	}
	registration["taints"] = taints
}

// pool writes what is one pool's.
func (c *Cluster) pool(p Pool) ([]Rendered, error) {
	given, err := c.given(p)
	if err != nil {
		return nil, err
	}
	files := []Rendered{{Name: "pools/" + p.Name + "/" + joinFile, Content: []byte(given.Join), Kubeadm: true}}
	text, err := placedText(given)
	if err != nil {
		return nil, err
	}
	if text != nil {
		files = append(files, Rendered{Name: "pools/" + p.Name + "/" + placedFile, Content: text})
	}
	configs, err := c.configs(p)
	return append(files, configs...), err
}

// joinNote is the beginning of every JoinConfiguration.
const joinNote = `# Left out, since one node alone has them: nodeRegistration.name, and discovery.tlsBootstrapToken, which comes with its ticket.
`

// join writes a pool's JoinConfiguration, without what only one node has.
func (c *Cluster) join(p Pool) ([]byte, error) {
	text, err := kubeadm.JoinTemplate(c.Profile)
	if err != nil {
		return nil, err
	}
	documents, err := decode(text)
	if err != nil {
		return nil, err
	}
	document := documents["JoinConfiguration"]
	for object, field := range map[string]string{"nodeRegistration": "name", "discovery": "tlsBootstrapToken"} {
		if holder, ok := document[object].(map[string]any); ok {
			delete(holder, field)
		}
	}
	if p.Role == hullmark.ControlPlane {
		document["controlPlane"] = map[string]any{}
	}
	register(document, p)
	if err := apply(documents, p.Overrides); err != nil {
		return nil, err
	}
	return encode(joinNote, document)
}

// placedText writes the files and hooks of a pool's nodes, or nothing if there are none.
func placedText(p measurements.Pool) ([]byte, error) {
	if len(p.Files) == 0 && len(p.Hooks) == 0 {
		return nil, nil
	}
	return kyaml.Marshal(struct {
		Files []measurements.PlacedFile `json:"files,omitempty"`
		Hooks []string                  `json:"hooks,omitempty"`
	}{p.Files, p.Hooks})
}

// placed are files as a policy has them.
func placed(files ...[]File) []measurements.PlacedFile {
	var all []measurements.PlacedFile
	for _, f := range slices.Concat(files...) {
		all = append(all, measurements.PlacedFile{Path: f.Path, Mode: cmp.Or(f.Mode, "0644"), Content: f.Content})
	}
	return all
}

// configs writes a node configuration for each member that has something of its own, and one that all others of the pool share.
func (c *Cluster) configs(p Pool) ([]Rendered, error) {
	var files []Rendered
	shared := len(p.Members) == 0
	for i, m := range p.Members {
		if !m.own() {
			shared = true
			continue
		}
		text, err := c.config(p, m)
		if err != nil {
			return nil, fmt.Errorf("members[%d] (%s): %w", i, m.Name, err)
		}
		files = append(files, Rendered{Name: "nodes/" + m.Name + "/" + configFile, Content: text})
	}
	if !shared {
		return files, nil
	}
	text, err := c.config(p, Member{})
	return append(files, Rendered{Name: "pools/" + p.Name + "/" + configFile, Content: text}), err
}

func (c *Cluster) config(p Pool, m Member) ([]byte, error) {
	node := p.config(m)
	node.Version, node.ClusterRoot, node.Endpoints, node.TimeServers = 1, c.Root, c.JoinEndpoints, c.around(p).TimeServers
	text, err := json.MarshalIndent(node, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("node config: %w", err)
	}
	_, err = hullmark.ParseNodeConfig(text)
	return append(text, '\n'), err
}

// services returns where the join services are to be found.
func (c *Cluster) services() []string {
	var found []string
	for _, p := range c.Pools {
		for _, m := range p.Members {
			if a, err := netip.ParsePrefix(firstOf(p.config(m).OwnAddresses())); err == nil && p.Role == hullmark.ControlPlane {
				found = append(found, hostPort(a.Addr().String()))
			}
		}
	}
	if i := strings.LastIndex(c.ControlPlane.Endpoint, ":"); len(found) == 0 && i > 0 {
		found = append(found, c.ControlPlane.Endpoint[:i]+":"+servicePort)
	}
	return found
}

func firstOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// hostPort returns where the join service at an address listens.
func hostPort(address string) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return address + ":" + servicePort
}

// draft writes the policy with the document's members in place of those in force.
func (c *Cluster) draft(policy measurements.Policy) ([]byte, error) {
	next := policy
	next.Members, next.Pools, next.Groups = nil, nil, nil
	for i, p := range c.Pools {
		pool, err := c.given(p)
		if err != nil {
			return nil, fmt.Errorf("pools[%d] (%s): %w", i, p.Name, err)
		}
		next.Pools = append(next.Pools, pool)
		if p.Vouched != nil {
			group, err := p.Vouched.group(p.Name)
			if err != nil {
				return nil, fmt.Errorf("pools[%d] (%s): vouched: %w", i, p.Name, err)
			}
			next.Groups = append(next.Groups, group)
		}
		for _, m := range p.Members {
			next.Members = append(next.Members, measurements.Member{EKID: m.EKID, Role: p.Role, Name: m.Name, Pool: p.Name, ProviderID: m.ProviderID})
		}
	}
	byName := func(a, b measurements.Member) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(next.Members, byName)
	slices.SortFunc(next.Pools, func(a, b measurements.Pool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(next.Groups, func(a, b measurements.Group) int { return strings.Compare(a.Name, b.Name) })
	policy.Members = slices.SortedFunc(slices.Values(policy.Members), byName)
	if policy.Version == 0 || !reflect.DeepEqual(policy.Groups, next.Groups) || !reflect.DeepEqual(policy.Members, next.Members) || !reflect.DeepEqual(policy.Pools, next.Pools) {
		next.Version++
	}
	return next.Encode()
}

// group is the policy's rule for the machines of a pool.
func (v Vouched) group(pool string) (measurements.Group, error) {
	group := measurements.Group{Name: pool, Pool: pool, Max: v.Max}
	var err error
	if v.Enrollers != "" {
		if group.Enrollers, err = measurements.ParseEnrollers([]byte(v.Enrollers)); err != nil {
			return measurements.Group{}, err
		}
		if len(v.Subject) > 0 {
			return measurements.Group{}, errors.New("enrollers: beside a subject: a voucher names one machine, and authorities alone say which keys are real")
		}
	}
	if v.Authorities != "" || v.Enrollers == "" && v.Roots == "" {
		if group.Authorities, err = pemcert.Split([]byte(v.Authorities)); err != nil {
			return measurements.Group{}, fmt.Errorf("authorities: %w", err)
		}
	}
	if v.Roots != "" {
		if group.Roots, err = pemcert.Split([]byte(v.Roots)); err != nil {
			return measurements.Group{}, fmt.Errorf("roots: %w", err)
		}
	}
	for kind, value := range sorted(v.Subject) {
		group.Subject = append(group.Subject, measurements.Attribute{Type: kind, Value: value})
	}
	return group, nil
}

// given is what a pool's nodes are given beside what every node is.
func (c *Cluster) given(p Pool) (measurements.Pool, error) {
	join, err := c.join(p)
	if err != nil {
		return measurements.Pool{}, err
	}
	files, err := c.filesOf(p)
	if err != nil {
		return measurements.Pool{}, err
	}
	return measurements.Pool{Name: p.Name, Join: string(join), Files: files, Hooks: slices.Concat(c.Hooks, p.Hooks)}, nil
}

// decode reads a YAML stream of ours by the kinds of its documents.
func decode(stream []byte) (map[string]map[string]any, error) {
	documents := map[string]map[string]any{}
	for part := range bytes.SplitSeq(stream, []byte("---\n")) {
		if len(part) == 0 {
			continue
		}
		text, err := kyaml.YAMLToJSON(part)
		if err != nil {
			return nil, err
		}
		var document map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &document); err != nil {
			return nil, err
		}
		name, _ := document["kind"].(string)
		documents[name] = document
	}
	return documents, nil
}

// encode writes documents as a YAML stream, their fields in order, each with a note, which is a comment or empty.
func encode(note string, documents ...map[string]any) ([]byte, error) {
	var out bytes.Buffer
	for _, d := range documents {
		text, err := kyaml.Marshal(d)
		if err != nil {
			return nil, err
		}
		// kubeadm takes a comment before the first mark for a document.
		out.WriteString("---\n" + note)
		out.Write(text)
	}
	return out.Bytes(), nil
}
