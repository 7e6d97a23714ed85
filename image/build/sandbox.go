package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// TryNamespaces tries what the sandbox of the tools tree needs of a machine: that an ordinary user makes namespaces, with a /proc.
// Root needs none that would be refused.
func TryNamespaces(ctx context.Context) error {
	return try(ctx, "bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true")
}

// TryUserIDs tries what mkosi needs beyond it: that an ordinary user gives a namespace a range of user IDs.
func TryUserIDs(ctx context.Context) error {
	return try(ctx, "unshare", "--user", "--map-auto", "--map-root-user", "true")
}

func try(ctx context.Context, program string, args ...string) error {
	said, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make a namespace as an ordinary user: %w: %s", err, bytes.TrimSpace(said))
	}
	return nil
}

// checkSandbox tries both, before minutes of work end in a message of mkosi's.
func checkSandbox(ctx context.Context) error {
	if os.Geteuid() == 0 {
		return nil
	}
	for _, try := range []func(context.Context) error{TryNamespaces, TryUserIDs} {
		if err := try(ctx); err != nil {
			return fmt.Errorf("%w (apt-get install bubblewrap uidmap; in a container docs/ci.md says what it has to allow)", err)
		}
	}
	return nil
}
