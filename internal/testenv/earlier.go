package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/cache"
)

// earlierModule is the module of EarlierPrograms, in the checkout.
const earlierModule = "internal/testenv/testdata/earlier"

// EarlierPrograms returns the folder of kube-apiserver and kubeadm of the minor release of Kubernetes before the bundle's, and which
// it is. They are compiled, which takes seven minutes of processor time, unless that was done before.
func EarlierPrograms(ctx context.Context) (bin string, v hullmark.Version, err error) {
	source, err := checkout()
	if err != nil {
		return "", v, err
	}
	store, err := cache.Open()
	if err != nil {
		return "", v, err
	}
	dir := filepath.Join(source, earlierModule)
	key, v, err := earlierKey(ctx, dir)
	if err != nil {
		return "", v, fmt.Errorf("earlier Kubernetes: %w", err)
	}
	root, _, err := store.Step("kubernetes-earlier", key, func(to string) error { return compileEarlier(ctx, dir, to, v) })
	if err != nil {
		return "", v, fmt.Errorf("earlier Kubernetes: %w", err)
	}
	return root, v, nil
}

var earlierRelease = regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes (v\S+)$`)

// earlierKey names what the module's files and the Go tool make.
func earlierKey(ctx context.Context, dir string) (key string, v hullmark.Version, err error) {
	var parts []string
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", v, err
		}
		if m := earlierRelease.FindSubmatch(text); m != nil && !v.Known() {
			if v, err = hullmark.ParseVersion(string(m[1])); err != nil {
				return "", v, err
			}
		}
		parts = append(parts, string(text))
	}
	if !v.Known() {
		return "", v, errors.New("go.mod requires no release of k8s.io/kubernetes")
	}
	compiler, err := exec.CommandContext(ctx, "go", "version").Output()
	return cache.Key(append(parts, string(compiler))...), v, err
}

// compileEarlier compiles the one program, links it under its names, and tells it its version, as the bundle's are told.
func compileEarlier(ctx context.Context, dir, to string, v hullmark.Version) error {
	flags := []string{"-s", "-w"}
	for _, p := range []string{"k8s.io/client-go/pkg/version", "k8s.io/component-base/version"} {
		flags = append(flags, "-X", p+".gitVersion="+v.String(), "-X", fmt.Sprintf("%s.gitMajor=%d", p, v.Major), "-X", fmt.Sprintf("%s.gitMinor=%d", p, v.Minor))
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", strings.Join(flags, " "), "-o", filepath.Join(to, "kube"), ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return errors.Join(os.Symlink("kube", filepath.Join(to, "kube-apiserver")), os.Symlink("kube", filepath.Join(to, "kubeadm")))
}

// StartServer runs the API of a new cluster by an API server of the programs in the folder bin, with further flags. There are no
// controllers: those of the bundle may be newer.
func StartServer(ctx context.Context, dir, bin string, flags ...string) (*Environment, error) {
	c, err := cluster.New()
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	own, err := Programs(ctx)
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	r := &Environment{Cluster: c, bin: own, dir: dir}
	r.UseServer(bin, flags...)
	for _, step := range []func(context.Context) error{r.writeKeys, r.startEtcd, r.StartAPI, r.letAdminsIn} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("testenv: %w", errors.Join(err, r.Stop()))
		}
	}
	return r, nil
}

// UseServer has StartAPI take the API server of the programs in the folder bin from now on, with further flags.
func (r *Environment) UseServer(bin string, flags ...string) { r.serverBin, r.serverFlags = bin, flags }
