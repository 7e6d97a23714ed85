package hullmark_test

import (
	"testing"

	"github.com/hullmark/hullmark"
)

// What an honest member may say later lacks nothing, what forgets a promise does; joinservice's tests say what follows.
func TestEtcdStateLacks(t *testing.T) {
	earlier := hullmark.EtcdState{Cluster: 1, Member: 2, Term: 5, Vote: 2, Commit: 8, Last: 10, LastTerm: 5}
	// Its leader of term 5 has yet to write: whoever leads it may overwrite entries 9 and 10.
	unled := earlier
	unled.LastTerm = 4
	for _, c := range []struct {
		name           string
		earlier, later hullmark.EtcdState
		lacks          bool
	}{
		{"the same", earlier, earlier, false},
		{"a later term and a shorter log", earlier, hullmark.EtcdState{Cluster: 1, Member: 2, Term: 6, Commit: 8, Last: 9, LastTerm: 6}, false},
		{"a tail of an earlier term is overwritten", unled, hullmark.EtcdState{Cluster: 1, Member: 2, Term: 5, Vote: 2, Commit: 8, Last: 9, LastTerm: 5}, false},
		{"the first vote of a term", hullmark.EtcdState{Cluster: 1, Member: 2, Term: 5}, hullmark.EtcdState{Cluster: 1, Member: 2, Term: 5, Vote: 3}, false},
		{"its own term's entry is gone", earlier, hullmark.EtcdState{Cluster: 1, Member: 2, Term: 5, Vote: 2, Commit: 8, Last: 9, LastTerm: 5}, true},
		{"a committed entry is gone", unled, hullmark.EtcdState{Cluster: 1, Member: 2, Term: 5, Vote: 2, Commit: 7, Last: 7, LastTerm: 4}, true},
		{"another vote", unled, hullmark.EtcdState{Cluster: 1, Member: 2, Term: 5, Vote: 3, Commit: 8, Last: 10, LastTerm: 4}, true},
		{"an earlier term and a longer log", unled, hullmark.EtcdState{Cluster: 1, Member: 2, Term: 4, Commit: 8, Last: 12, LastTerm: 4}, true},
		{"another member, which has more", earlier, hullmark.EtcdState{Cluster: 1, Member: 3, Term: 6, Commit: 9, Last: 12, LastTerm: 6}, true},
		{"another etcd's member, which has more", earlier, hullmark.EtcdState{Cluster: 2, Member: 2, Term: 6, Commit: 9, Last: 12, LastTerm: 6}, true},
		{"none", earlier, hullmark.EtcdState{}, true},
	} {
		if why := c.later.Lacks(c.earlier); (why != "") != c.lacks {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}
