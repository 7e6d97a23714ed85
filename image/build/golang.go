package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// goCommand prepares a release of the Go tool with an environment in which nothing of the person's own settings reaches the binaries. The machine's
// Go runs if it is of that release; if not, it fetches the release through the module proxy and checks it like a module
// (https://go.dev/doc/toolchain). Objects is the folder for compiled packages; empty means the person's.
func goCommand(ctx context.Context, release, dir, objects string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+release, "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1",
		"GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off", "GOEXPERIMENT=", "GODEBUG=")
	if objects != "" {
		cmd.Env = append(cmd.Env, "GOCACHE="+objects)
	}
	return cmd
}

// goTool runs goCommand and returns what it printed.
func goTool(ctx context.Context, release, dir, objects string, args ...string) ([]byte, error) {
	out, err := goCommand(ctx, release, dir, objects, args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("go %s: %w: %s", args[0], err, failed.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("go %s: %w (Go is needed: https://go.dev/dl)", args[0], err)
	}
	return out, nil
}

// machineGo returns the release of the machine's own Go.
func machineGo(ctx context.Context, dir string) (string, error) {
	out, err := goTool(ctx, "local", dir, "", "env", "GOVERSION")
	return strings.TrimSpace(string(out)), err
}

// checkGo returns an error that says what to do if the locked release of Go cannot be had.
func checkGo(ctx context.Context, release, dir string) error {
	out, err := goTool(ctx, release, dir, "", "env", "GOVERSION")
	got := strings.TrimSpace(string(out))
	if err == nil && got == release {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("got %s", got)
	}
	return fmt.Errorf("%s is locked and cannot be had: %w (install it, or let hullmark lock choose this machine's)", release, err)
}
