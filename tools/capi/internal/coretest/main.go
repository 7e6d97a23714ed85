package coretest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hullmark/hullmark/internal/testenv"
)

// Main is a TestMain whose tests share one API. prepare starts it in a folder of its own, and what else is to run until ctx ends, of
// which ended has the error then.
func Main(m *testing.M, prepare func(ctx context.Context, dir string) (api *testenv.Environment, ended <-chan error, err error)) {
	code, err := run(m, prepare)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, prepare func(context.Context, string) (*testenv.Environment, <-chan error, error)) (code int, err error) {
	// Errors alone: of some of them a failed test tells nothing.
	ctrl.SetLogger(funcr.New(func(_, line string) { fmt.Fprintln(os.Stderr, line) }, funcr.Options{Verbosity: -1}))
	dir, err := os.MkdirTemp("", "capi-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The bundle may have to be compiled.
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Minute)
	defer cancel()
	api, ended, err := prepare(ctx, dir)
	if api != nil {
		defer func() { err = errors.Join(err, api.Stop()) }()
	}
	if err != nil {
		return 1, err
	}
	code = m.Run()
	cancel()
	return code, <-ended
}
