package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/flannel-io/flannel/pkg/ip"
)

// conflist is a CNI network configuration list (CNI specification, section 1).
type conflist struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Plugins    []wire `json:"plugins"`
}

// wire configures plugin ptp: one routed veth pair for each pod. Without a bridge no
// packet between two pods of a node escapes nftables, so br_netfilter is not needed.
type wire struct {
	Type string `json:"type"`
	MTU  int    `json:"mtu"`
	IPAM ipam   `json:"ipam"`
}

// ipam configures plugin host-local: addresses counted out of one subnet.
type ipam struct {
	Type    string    `json:"type"`
	DataDir string    `json:"dataDir"`
	Ranges  [][]span  `json:"ranges"`
	Routes  []nextHop `json:"routes"`
}

type span struct {
	Subnet string `json:"subnet"`
}

type nextHop struct {
	Destination string `json:"dst"`
}

// cniFor is the configuration that gives pods addresses of own.
func cniFor(own ip.IP4Net, mtu int) conflist {
	return conflist{
		CNIVersion: "0.4.0",
		Name:       "flannel",
		Plugins: []wire{{
			Type: "ptp",
			MTU:  mtu,
			IPAM: ipam{
				Type: "host-local",
				// Below /run: addresses of a boot that has ended are free again.
				DataDir: "/run/cni-ipam-state",
				Ranges:  [][]span{{{Subnet: own.String()}}},
				Routes:  []nextHop{{Destination: "0.0.0.0/0"}},
			},
		}},
	}
}

// writeCNI replaces path in one step, because the container runtime watches the folder.
func writeCNI(path string, own ip.IP4Net, mtu int) error {
	text, err := json.MarshalIndent(cniFor(own, mtu), "", "  ")
	if err != nil {
		return err
	}
	// The runtime reads *.conf, *.conflist and *.json only.
	unfinished := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(unfinished, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}
