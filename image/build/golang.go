package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// goSettings are the person's settings that reach the Go tool: from where modules come and where things are kept. No other
// does, whether it stands in the environment or in the file that go env -w writes, because others shape binaries.
var goSettings = []string{"GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOINSECURE", "GOAUTH", "GOMODCACHE", "GOCACHE", "GOVCS"}

// goCommand prepares a release of the Go tool. The machine's Go runs if it calls itself that release; if not, it fetches the
// release through the module proxy and checks it like a module (https://go.dev/doc/toolchain). Objects is the folder for
// compiled packages; empty means the person's.
func goCommand(ctx context.Context, release, dir, objects string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = goEnvironment(ctx)
	cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+release, "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false")
	if objects != "" {
		cmd.Env = append(cmd.Env, "GOCACHE="+objects)
	}
	return cmd
}

// goEnvironment is the environment without anything that begins like a setting of Go, and then goSettings as they are in force.
func goEnvironment(ctx context.Context) []string {
	environment := slices.DeleteFunc(os.Environ(), func(s string) bool {
		if strings.HasPrefix(s, "GOMAXPROCS=") || strings.HasPrefix(s, "GOGC=") {
			return false // What Go makes does not hang on them.
		}
		return strings.HasPrefix(s, "GO") || strings.HasPrefix(s, "CGO_")
	})
	environment = append(environment, "GOENV=off", "GOWORK=off")
	out, err := exec.CommandContext(ctx, "go", append([]string{"env", "-json"}, goSettings...)...).Output()
	var inForce map[string]string
	if err != nil || json.Unmarshal(out, &inForce) != nil {
		return environment // the command that follows says what is wrong with Go
	}
	for _, name := range goSettings {
		if value := inForce[name]; value != "" {
			environment = append(environment, name+"="+value)
		}
	}
	return environment
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

// errGoGone says that no source has a release of Go.
var errGoGone = errors.New("it is gone")

// goneAnswers are what the Go tool prints where a source was asked and does not have the release; everything else may be
// otherwise tomorrow.
var goneAnswers = []string{"toolchain not available", "404 Not Found", "410 Gone", "403 Forbidden"}

// checkGo returns an error that says what to do if the locked release of Go cannot be had; it is errGoGone if nobody has it.
func checkGo(ctx context.Context, release, dir string) error {
	out, err := goTool(ctx, release, dir, "", "env", "GOVERSION")
	got := strings.TrimSpace(string(out))
	if err == nil && got == release {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s is locked, but Go says that it is %s", release, got)
	}
	if slices.ContainsFunc(goneAnswers, func(a string) bool { return strings.Contains(err.Error(), a) }) {
		err = errors.Join(errGoGone, err)
	}
	return fmt.Errorf("%s is locked and cannot be had: %w (install it, or let hullmark build --relock take this machine's)", release, err)
}
