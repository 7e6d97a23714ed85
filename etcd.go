package hullmark

import "fmt"

// EtcdState is what a member of etcd has stored for good: Raft's persistent state (Ongaro, Consensus: Bridging Theory and Practice, §3.8),
// as the member's write-ahead log has it. A member that comes back with less may elect a second leader in a term, or
// let others forget what it had acknowledged. The zero value is none.
type EtcdState struct {
	// Cluster and Member are etcd's identities.
	Cluster uint64 `json:"cluster"`
	Member  uint64 `json:"member"`
	// Term is the highest that the member has seen, Vote whom it elected in it, 0 for nobody.
	Term uint64 `json:"term"`
	Vote uint64 `json:"vote"`
	// Commit is the highest index that it knew to be committed, at most Last.
	Commit uint64 `json:"commit"`
	// Last is the index of the last entry of its log, and LastTerm that entry's term.
	Last     uint64 `json:"last"`
	LastTerm uint64 `json:"lastTerm"`
}

// Lacks says what of an earlier state of the same member is gone, or nothing. An honest member lacks nothing, whenever its power was cut,
// if all of the earlier state was stored then:
//
//   - its term never falls, and in a term its vote never changes;
//   - no committed entry is ever taken back;
//   - another entry may be: whoever leads a later term overwrites it. But while the last entry is of the present term, its log is
//     that of the term's leader, which only grows.
func (s EtcdState) Lacks(earlier EtcdState) string {
	sameTerm := s.Term == earlier.Term
	switch {
	case s.Cluster != earlier.Cluster || s.Member != earlier.Member:
		return fmt.Sprintf("it is of member %x of cluster %x", s.Member, s.Cluster)
	case s.Term < earlier.Term:
		return fmt.Sprintf("it is at term %d", s.Term)
	case sameTerm && earlier.Vote != 0 && s.Vote != earlier.Vote:
		return fmt.Sprintf("its vote of term %d is gone", s.Term)
	case s.Last < earlier.Commit, sameTerm && earlier.LastTerm == earlier.Term && (s.LastTerm != s.Term || s.Last < earlier.Last):
		return fmt.Sprintf("its log ends at index %d of term %d", s.Last, s.LastTerm)
	}
	return ""
}

// String is what people compare.
func (s EtcdState) String() string {
	return fmt.Sprintf("member %x of cluster %x at term %d, index %d", s.Member, s.Cluster, s.Term, s.Last)
}
