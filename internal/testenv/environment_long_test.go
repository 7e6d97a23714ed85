//go:build long

package testenv

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRigStartsAndRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r, err := Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}()
	namespace := []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: one}\n")
	if err := r.Apply(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	if err := r.StopAPI(); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(ctx, namespace); err == nil {
		t.Error("a stopped API server answers")
	}
	if err := r.StartAPI(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(ctx, namespace); err != nil {
		t.Error(err)
	}
}

func TestStartSaysWhyAProgramEnded(t *testing.T) {
	bin, err := Programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := Launch(t.TempDir(), exec.Command(filepath.Join(bin, "etcd"), "--data-dir=/dev/null/none"))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Await(t.Context(), func() error { return context.DeadlineExceeded })
	if err == nil || !strings.Contains(err.Error(), "/dev/null/none") {
		t.Errorf("got %v", err)
	}
	if err := p.Stop(); err == nil {
		t.Error("nobody is told that the program had ended")
	}
}
