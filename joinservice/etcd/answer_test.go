package etcd

import (
	"context"
	"net"
	"runtime"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// flooding is a member that lists others without end.
type flooding struct {
	etcdserverpb.UnimplementedClusterServer
	members int
}

func (f *flooding) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse, error) {
	answer := &etcdserverpb.MemberListResponse{Header: &etcdserverpb.ResponseHeader{}}
	one := &etcdserverpb.Member{ID: 1, Name: "n"}
	for range f.members {
		answer.Members = append(answer.Members, one)
	}
	return answer, nil
}

// A member that answers what it likes does not fill the memory of who asks: a controller of many clusters, most of them somebody else's.
func TestAnswersAreBounded(t *testing.T) {
	for members, taken := range map[int]bool{maxMembers: true, 1 << 20: false} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		etcdserverpb.RegisterClusterServer(server, &flooding{members: members})
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		m := &Members{Endpoint: "http://" + listener.Addr().String()}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		all, err := m.List(t.Context())
		runtime.ReadMemStats(&after)
		if taken != (err == nil) || taken != (len(all) == members) {
			t.Errorf("%d members: %d, %v", members, len(all), err)
		}
		// The server's own writing included.
		if took := after.TotalAlloc - before.TotalAlloc; took > 80<<20 {
			t.Errorf("%d members: %d MiB", members, took>>20)
		}
	}
}
