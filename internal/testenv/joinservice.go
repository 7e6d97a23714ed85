package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
)

// JoinService is a process of the real join service, which has the same addresses after a restart.
type JoinService struct {
	*Process
	// Dir is the folder of its files.
	Dir string
	// Listen is where nodes dial it, Metrics where its health and metrics are.
	Listen, Metrics string

	program string
	args    []string
}

// BuildJoinService compiles the program to a file.
func BuildJoinService(ctx context.Context, program string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "github.com/hullmark/hullmark/tools/joinservice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("testenv: %w: %s", err, out)
	}
	return nil
}

// NewJoinService prepares a service of a cluster, with files below dir and further arguments. It does not run yet.
func NewJoinService(program, dir string, c *cluster.Cluster, args ...string) (*JoinService, error) {
	s := &JoinService{Dir: dir, program: program, args: args}
	for _, address := range []*string{&s.Listen, &s.Metrics} {
		var err error
		if *address, err = FreeAddress(); err != nil {
			return nil, fmt.Errorf("testenv: %w", err)
		}
	}
	return s, errors.Join(os.MkdirAll(filepath.Join(dir, "state"), 0o700), s.WriteCredentials(c))
}

// credentials is the folder that systemd would make.
func (s *JoinService) credentials() string { return filepath.Join(s.Dir, "credentials") }

// Start runs the program and returns when it serves.
func (s *JoinService) Start(ctx context.Context) (err error) {
	cmd := exec.Command(s.program, append([]string{"-listen", s.Listen, "-metrics", s.Metrics}, s.args...)...)
	cmd.Env = []string{"CREDENTIALS_DIRECTORY=" + s.credentials(), "STATE_DIRECTORY=" + filepath.Join(s.Dir, "state")}
	if s.Process, err = Launch(s.Dir, cmd); err != nil {
		return err
	}
	return s.Await(ctx, func() error {
		response, err := http.Get("http://" + s.Metrics + "/healthz")
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
}

// WriteCredentials makes of the files of a cluster's control planes what systemd makes of them by the service's unit.
func (s *JoinService) WriteCredentials(c *cluster.Cluster) error {
	files, err := c.Files()
	if err != nil {
		return err
	}
	return s.WriteFiles(files)
}

// WriteFiles does so with the files that one control plane was given.
func (s *JoinService) WriteFiles(files []*wire.File) error {
	source, err := checkout()
	if err != nil {
		return err
	}
	unit, err := os.ReadFile(filepath.Join(source, "systemd/system/hullmark-joinservice.service"))
	if err != nil {
		return err
	}
	dir := s.credentials()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for line := range strings.Lines(string(unit)) {
		if name, content, ok := setting(line, "SetCredential="); ok {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
		name, source, ok := setting(line, "LoadCredential=")
		for _, f := range files {
			switch {
			case !ok:
			case f.Path == source:
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), f.Content, 0o600))
			case path.Dir(f.Path) == source:
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, name+"_"+path.Base(f.Path)), f.Content, 0o600))
			}
		}
	}
	return err
}

// setting takes a unit's line apart.
func setting(line, key string) (name, value string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), key)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ":")
}
