package etcd

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

// at is the address of the n-th control plane.
func at(n byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, n})} }

// up and gone are voting members that answer and do not.
func up(n byte) member {
	return member{id: uint64(n), name: string('a' + n - 1), addresses: at(n), answers: true}
}

func gone(n byte) member {
	m := up(n)
	m.answers = false
	return m
}

// announced is a learner that never started.
func announced(n byte) member { return member{id: uint64(n), addresses: at(n), learner: true} }

// learning is a learner that started.
func learning(n byte, answers bool) member {
	return member{id: uint64(n), name: string('a' + n - 1), addresses: at(n), learner: true, answers: answers}
}

func TestPlan(t *testing.T) {
	says := map[string]string{
		"etcd-no-quorum":    "of etcd would risk its quorum (expected a majority of the voting members that answers, got ",
		"etcd-member-alive": "a running member of etcd has the name or the address of the node that is to join",
	}
	moved, unnamed, named := gone(4), member{id: 4, addresses: at(3)}, member{id: 4, name: "c"}
	moved.addresses = at(3)
	for what, c := range map[string]struct {
		members []member
		stale   []uint64
		code    string
	}{
		"nothing is stale":                              {members: []member{up(1), up(2)}},
		"nothing is stale, another member is down":      {members: []member{up(1), up(2), gone(4)}},
		"a voter by name and address":                   {members: []member{up(1), up(2), gone(3)}, stale: []uint64{3}},
		"a voter by its address":                        {members: []member{up(1), up(2), moved}, stale: []uint64{4}},
		"a voter by its name":                           {members: []member{up(1), up(2), named}, stale: []uint64{4}},
		"a voter that never started, by its address":    {members: []member{up(1), up(2), unnamed}, stale: []uint64{4}},
		"two, the name's and the address's, of five":    {members: []member{up(1), up(2), up(5), gone(3), moved}, stale: []uint64{3, 4}},
		"a learner that never started":                  {members: []member{up(1), announced(3)}, stale: []uint64{3}},
		"a learner of another node that never started":  {members: []member{up(1), announced(9)}, stale: []uint64{9}},
		"a learner that started and stopped":            {members: []member{up(1), up(2), learning(3, false)}, stale: []uint64{3}},
		"a learner of another node that learns":         {members: []member{up(1), up(2), learning(9, true)}},
		"of two voters one":                             {members: []member{up(1), gone(3)}, code: "etcd-no-quorum"},
		"of three voters one, while another is down":    {members: []member{up(1), gone(2), gone(3)}, code: "etcd-no-quorum"},
		"of four voters two":                            {members: []member{up(1), up(2), gone(3), moved}, code: "etcd-no-quorum"},
		"a learner, while of two voters one is down":    {members: []member{up(1), gone(2), announced(3)}, code: "etcd-no-quorum"},
		"of five voters one, while another one is down": {members: []member{up(1), up(2), up(4), gone(5), gone(3)}, stale: []uint64{3}},
		"the name answers":                              {members: []member{up(1), up(2), up(3)}, code: "etcd-member-alive"},
		"a learner with the name answers":               {members: []member{up(1), up(2), learning(3, true)}, code: "etcd-member-alive"},
	} {
		stale, err := plan(c.members, "c", at(3)[0])
		var ids []uint64
		for _, s := range stale {
			ids = append(ids, s.id)
		}
		if !slices.Equal(ids, c.stale) || codeOf(err) != c.code {
			t.Errorf("%s: got %v, %v; want %v, %q", what, ids, err, c.stale, c.code)
		}
		if err != nil && !strings.Contains(err.Error(), says[c.code]) {
			t.Errorf("%s: got %v, want %q in it", what, err, says[c.code])
		}
	}
}

func TestDown(t *testing.T) {
	members := []member{up(1), gone(2), gone(3)}
	if err := down(members, members[1:]); err != nil {
		t.Errorf("all that stay answer: %v", err)
	}
	if err := down(members, members[2:]); codeOf(err) != "etcd-member-down" {
		t.Errorf("got %v", err)
	}
}

// A member that is nobody's is removed if it is silent, and the others have a majority of those that vote.
func TestMayDrop(t *testing.T) {
	for what, c := range map[string]struct {
		members []member // the last one is to be removed
		says    string
	}{
		"a voter of three":                       {members: []member{up(1), up(2), gone(3)}},
		"a voter of five, while another is down": {members: []member{up(1), up(2), up(4), gone(5), gone(3)}},
		"a learner that never started":           {members: []member{up(1), announced(3)}},
		"a learner that started and stopped":     {members: []member{up(1), learning(3, false)}},
		"of two voters one":                      {members: []member{up(1), gone(3)}, says: "etcd-no-quorum"},
		"of four voters, while another is down":  {members: []member{up(1), up(2), gone(4), gone(3)}, says: "etcd-no-quorum"},
		"a learner, without a quorum":            {members: []member{up(1), gone(2), announced(3)}, says: "etcd-no-quorum"},
		"a voter that answers":                   {members: []member{up(1), up(2), up(3)}, says: "etcd-member-alive"},
		"a learner that answers":                 {members: []member{up(1), up(2), learning(3, true)}, says: "etcd-member-alive"},
	} {
		err := mayDrop(c.members, c.members[len(c.members)-1])
		if got := codeOf(err); got != c.says {
			t.Errorf("%s: got %q, want %q", what, got, c.says)
		}
		if condition := (*hullmark.Condition)(nil); errors.As(err, &condition) && condition.Retry != (c.says == "etcd-no-quorum") {
			t.Errorf("%s: asked again at another member: %t", what, condition.Retry)
		}
	}
}

// codeOf is a condition's code, empty for no error.
func codeOf(err error) string {
	var condition *hullmark.Condition
	switch {
	case err == nil:
		return ""
	case errors.As(err, &condition):
		return condition.Code
	}
	return err.Error()
}
