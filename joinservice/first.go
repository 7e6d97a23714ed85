package joinservice

import "github.com/hullmark/hullmark"

// FirstRecord is the record of a cluster's first node while no API server can keep it (docs/protocol.md, Epoch): the operator's
// cluster file has it, and the node's own service takes it over.
type FirstRecord struct {
	// EKID is the machine that the operator named.
	EKID hullmark.EKID `json:"ekid"`
	// Disk is the state disk that the machine showed last.
	Disk hullmark.UUID `json:"disk"`
	// Committed and Issued bound the disk's counter.
	Committed uint64 `json:"committed"`
	// Issued is the last number that a ticket carried.
	Issued uint64 `json:"issued"`
	// Serial is that of the last signed override that was used on the record.
	Serial uint64 `json:"serial,omitempty"`
	// Floor is the record's.
	Floor uint64 `json:"floor,omitempty"`
	// Trust is the record's.
	Trust hullmark.TrustClass `json:"trust,omitempty"`
	// Root is the one that the machine's configuration named last; zero is the cluster's first.
	Root hullmark.ClusterRoot `json:"clusterRoot,omitzero"`
}
