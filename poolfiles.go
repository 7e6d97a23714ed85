package hullmark

import (
	"errors"
	"fmt"
	"strings"
)

// What a pool's nodes find around them, in files that come with each Proceed. The folder holds, after each boot, what that
// boot's Proceed brought and nothing else.
const (
	PoolFolder = "/var/lib/hullmark/pool/"
	// RegistriesFolder has a folder with hosts.toml for each registry, as containerd reads it.
	RegistriesFolder = PoolFolder + "registries/"
	// TimeFile is a part of timesyncd.conf(5).
	TimeFile = PoolFolder + "timesyncd.conf"
	// CollectorFile is a Collector; the others, in PEM, are by what it is known, and by what it knows nodes, if by anything.
	CollectorFile        = PoolFolder + "journal/collector.json"
	CollectorCA          = PoolFolder + "journal/ca.crt"
	CollectorCertificate = PoolFolder + "journal/client.crt"
	CollectorKey         = PoolFolder + "journal/client.key"
)

// ForwardFile is where the forwarder says how it is getting on, on a RAM disk.
const ForwardFile = "/run/hullmark-journal/forward.json"

// maxCollector bounds an encoded Collector, in bytes.
const maxCollector = 4 << 10

// Collector is who is sent a node's journal.
type Collector struct {
	// Endpoint is its HOST:PORT.
	Endpoint string `json:"endpoint"`
	// Name is what its certificate is for.
	Name string `json:"name"`
}

// ParseCollector strictly reads a Collector in JSON.
func ParseCollector(encoded []byte) (Collector, error) {
	var c Collector
	err := DecodeStrict(encoded, maxCollector, &c)
	if err == nil && (!ValidEndpoint(c.Endpoint) || !ValidServerName(c.Name)) {
		err = errors.New("want an endpoint, HOST:PORT, and the name in its certificate")
	}
	if err != nil {
		return Collector{}, fmt.Errorf("journal's collector: %w", err)
	}
	return c, nil
}

// maxForward bounds an encoded Forward, in bytes.
const maxForward = 16 << 10

// Forward says how a node's forwarder of the journal is getting on.
type Forward struct {
	// Sent and Dropped are entries since the forwarder's start: those that the collector's machine has acknowledged, and those that the
	// journal gave up before they could be sent.
	Sent    uint64 `json:"sent"`
	Dropped uint64 `json:"dropped"`
	// Newest is the time of the newest entry that was sent, in Unix time; 0 before the first.
	Newest int64 `json:"newest"`
	// Condition is why nothing is sent now; nil while the collector takes what there is.
	Condition *Condition `json:"condition,omitempty"`
}

// ParseForward strictly reads a Forward in JSON.
func ParseForward(encoded []byte) (Forward, error) {
	var f Forward
	if err := DecodeStrict(encoded, maxForward, &f); err != nil {
		return Forward{}, fmt.Errorf("forwarder's state: %w", err)
	}
	return f, nil
}

// TimeSettings is what TimeFile says of time servers: they are the only ones, whatever was named before.
func TimeSettings(servers []string) string {
	return "[Time]\nNTP=\nNTP=" + strings.Join(servers, " ") + "\n"
}
