package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// checkSandbox tries what mkosi and the sandbox of the tools tree need of the machine, before minutes of work end in a message
// of theirs: an ordinary user makes namespaces, with a /proc and with a range of user IDs.
func checkSandbox(ctx context.Context) error {
	if os.Geteuid() == 0 {
		return nil
	}
	for _, try := range [][]string{
		{"bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"},
		{"unshare", "--user", "--map-auto", "--map-root-user", "true"},
	} {
		if said, err := exec.CommandContext(ctx, try[0], try[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("make a namespace as an ordinary user: %w: %s (apt-get install bubblewrap uidmap; in a container docs/ci.md says what it has to allow)", err, bytes.TrimSpace(said))
		}
	}
	return nil
}
