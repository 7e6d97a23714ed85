package operate

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
)

// A node that hangs up has restarted if it was to, and has done nothing if it was not.
func TestUpdateIsCut(t *testing.T) {
	text, err := wire.EncodeUpdateStatus(hullmark.UpdateStatus{Running: "a", Default: "a", Phase: hullmark.UpdateStaging})
	if err != nil {
		t.Fatal(err)
	}
	gone := status.Error(codes.Unavailable, "the connection is gone")
	for _, c := range []struct {
		action hullmark.UpdateAction
		end    error
		ok     bool
	}{
		{hullmark.UpdateStage, gone, false},
		{hullmark.UpdateCommit, gone, false},
		{hullmark.UpdateTry, gone, true},
		{hullmark.UpdateRestart, gone, true},
		{hullmark.UpdateStage, io.EOF, true},
		{hullmark.UpdateTry, status.Error(codes.Internal, "broken"), false},
	} {
		_, err := Node{}.followUpdate(c.action, &wire.UpdateReply{Status: text}, func() (*wire.UpdateReply, error) { return nil, c.end })
		if (err == nil) != c.ok || c.end == gone && !c.ok && !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s, ended by %v: %v", c.action, c.end, err)
		}
	}
}
