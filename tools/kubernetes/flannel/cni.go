package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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

// ipam configures plugin host-local: addresses counted out of a subnet of each family.
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

// cniFor is the configuration that gives pods an address of each of own.
func cniFor(own []string, mtu int) conflist {
	// Below /run: addresses of a boot that has ended are free again.
	addresses := ipam{Type: "host-local", DataDir: "/run/cni-ipam-state"}
	for _, subnet := range own {
		everywhere := "0.0.0.0/0"
		if strings.Contains(subnet, ":") {
			everywhere = "::/0"
		}
		addresses.Ranges = append(addresses.Ranges, []span{{Subnet: subnet}})
		addresses.Routes = append(addresses.Routes, nextHop{Destination: everywhere})
	}
	return conflist{CNIVersion: "0.4.0", Name: "flannel", Plugins: []wire{{Type: "ptp", MTU: mtu, IPAM: addresses}}}
}

// writeCNI replaces path in one step, because the container runtime watches the folder.
func writeCNI(path string, own []string, mtu int) error {
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
