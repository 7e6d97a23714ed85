package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hullmark/hullmark"
)

// definitions are the folders of definitions that the releases are layered from: common is in each.
//
//go:embed releases
var definitions embed.FS

// earlier is the patch release of Kubernetes that the machines begin with.
const earlier = "36.1"

// release is an image that the upgrades' demo builds.
type release struct {
	name    string
	folders []string // its definitions, layered
	source  string   // the checkout that it is built from
}

func (r *release) lock(d *demo) string  { return d.path("releases", r.name+".lock") }
func (r *release) out(d *demo) string   { return d.path("releases", r.name) }
func (r *release) image(d *demo) string { return filepath.Join(r.out(d), "hullmark.raw") }

// document is the prediction of a release on a node's machine.
func (d *demo) document(r *release, n *node) string {
	if r.name == "base" && n == d.first {
		return d.path("measurements.json")
	}
	if r.name == "base" {
		return d.path("workers.measurements.json")
	}
	return d.path("releases", r.name+"."+n.name+".json")
}

// planReleases says which releases there are. Those that do not work differ from the first by one file each; then other packages follow,
// and another Kubernetes.
func (d *demo) planReleases() {
	older := d.path("source")
	d.releases = map[string]*release{
		"base":       {source: older},
		"panic":      {source: older, folders: []string{"panic"}},
		"hang":       {source: older, folders: []string{"hang"}},
		"unready":    {source: older, folders: []string{"unready"}},
		"packages":   {source: older, folders: []string{"packages"}},
		"kubernetes": {source: ".", folders: []string{"packages"}},
	}
	for name, r := range d.releases {
		r.name = name
	}
}

// buildRelease locks and builds a release.
func (d *demo) buildRelease(ctx context.Context, r *release) error {
	config := d.path("releases", r.name+".config")
	if err := os.RemoveAll(config); err != nil {
		return err
	}
	for _, name := range append([]string{"common"}, r.folders...) {
		layer, err := fs.Sub(definitions, "releases/"+name)
		if err != nil {
			return err
		}
		if err := copyTree(config, layer); err != nil {
			return err
		}
	}
	if r.source != "." {
		if err := d.earlierSource(ctx, r.source); err != nil {
			return fmt.Errorf("the checkout with Kubernetes 1.%s: %w", earlier, err)
		}
	}
	if _, err := os.Stat(r.lock(d)); err != nil {
		if err := d.hullmark(ctx, "lock", "--source", r.source, "--config", config, "--lock", r.lock(d)); err != nil {
			return err
		}
	}
	return d.hullmark(ctx, "build", "--source", r.source, "--config", config, "--lock", r.lock(d), "--out", r.out(d), "--release", r.name)
}

// copyTree writes files over those of a folder, as mkosi layers definitions.
func copyTree(to string, from fs.FS) error {
	return fs.WalkDir(from, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := filepath.Join(to, path)
		if e.IsDir() {
			return os.MkdirAll(at, 0o755)
		}
		text, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		return os.WriteFile(at, text, 0o644)
	})
}

// earlierSource copies the checkout, and lets the copy have an earlier release of Kubernetes.
func (d *demo) earlierSource(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	next := dir + ".new"
	if err := errors.Join(os.RemoveAll(next), os.MkdirAll(next, 0o755)); err != nil {
		return err
	}
	// Git knows which files are the checkout's; cp keeps links that lead nowhere here.
	files, err := exec.CommandContext(ctx, "git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w (it wants git, apt-get install git, and a clone)", err)
	}
	list := strings.FieldsFunc(string(files), func(r rune) bool { return r == 0 })
	if out, err := exec.CommandContext(ctx, "cp", append([]string{"--archive", "--parents", "--target-directory", next, "--"}, list...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	if err := setKubernetes(next, earlier); err != nil {
		return err
	}
	modules := filepath.Join(next, "tools", "kubernetes")
	cmd := exec.CommandContext(ctx, "go", "list", "-mod=mod", "-deps", "./kube", "./etcd", "./pause")
	cmd.Dir, cmd.Stderr = modules, os.Stderr
	if err := cmd.Run(); err != nil { // It adds to go.sum.
		return fmt.Errorf("go list: %w", err)
	}
	return os.Rename(next, dir)
}

// setKubernetes has a checkout bring another minor and patch release of Kubernetes, by whose number all its modules go.
func setKubernetes(checkout, version string) error {
	modules := filepath.Join(checkout, "tools", "kubernetes", "go.mod")
	text, err := os.ReadFile(modules)
	if err != nil {
		return err
	}
	_, rest, found := bytes.Cut(text, []byte("\tk8s.io/kubernetes v1."))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	now := string(line)
	if !found {
		return fmt.Errorf("%s requires no k8s.io/kubernetes", modules)
	}
	changes := strings.NewReplacer(" v1."+now+"\n", " v1."+version+"\n", " v0."+now+"\n", " v0."+version+"\n", `"v1.`+now+`"`, `"v1.`+version+`"`)
	for _, file := range []string{modules, filepath.Join(checkout, "kubeadm", "documents.go")} {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed := changes.Replace(string(text))
		if changed == string(text) {
			return fmt.Errorf("%s does not name Kubernetes 1.%s", file, now)
		}
		if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// offer builds a release, predicts it on the nodes' machines, publishes it, and has the cluster accept it.
func (d *demo) offer(ctx context.Context, r *release, nodes ...*node) error {
	if err := d.publish(ctx, r, nodes...); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := d.policy(ctx, "add", "document", d.document(r, n)); err != nil {
			return err
		}
	}
	return d.policy(ctx, "push", "--server", "127.0.0.1:"+d.api, "--wait", "10m")
}

// publish builds a release, predicts it on the nodes' machines, and puts it where machines fetch it, with the document that the build made
// of it for anybody, signed.
func (d *demo) publish(ctx context.Context, r *release, nodes ...*node) error {
	if err := d.buildRelease(ctx, r); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := d.hullmark(ctx, "measure", r.image(d), "--machine", n.file, "--release", r.name, "--out", d.document(r, n)); err != nil {
			return err
		}
	}
	key, public := d.path("release.key"), d.path("release.pub")
	if _, err := os.Stat(public); err != nil {
		for _, args := range [][]string{{"genpkey", "-algorithm", "ed25519", "-out", key}, {"pkey", "-in", key, "-pubout", "-out", public}} {
			if out, err := exec.CommandContext(ctx, "openssl", args...).CombinedOutput(); err != nil {
				return fmt.Errorf("openssl: %w: %s", err, out)
			}
		}
	}
	document := filepath.Join(r.out(d), "hullmark")
	if err := d.hullmark(ctx, "sign", document+".json", "--key", key); err != nil {
		return err
	}
	if err := d.hullmark(ctx, "publish", document+".dsse", "--key", public, "--image", r.image(d), "--to", d.path("published")); err != nil {
		return err
	}
	return d.openShelf()
}

// openShelf shows the published releases to the machines, by a web server of this process.
func (d *demo) openShelf() error {
	if d.shelf != "" {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, http.FileServer(http.Dir(d.path("published")))) }() // It ends with the process.
	_, port, err := net.SplitHostPort(l.Addr().String())
	d.shelf = "http://" + router + ":" + port
	return err
}

// updateStatus asks a node what its slots hold, until it has settled: one whose trial went well says so a little after it is Ready.
func (d *demo) updateStatus(ctx context.Context, n *node) (s hullmark.UpdateStatus, err error) {
	ctx, cancel := d.attended(ctx)
	defer cancel()
	args := append([]string{"update", "status", "-o", "json"}, d.toNode(n)...)
	for {
		cmd := exec.CommandContext(ctx, hullmarkPath(), args...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err == nil {
			if err := json.Unmarshal(out, &s); err != nil {
				return s, err
			}
			if !slices.Contains([]hullmark.UpdatePhase{hullmark.UpdateTrial, hullmark.UpdateStaging}, s.Phase) {
				fmt.Printf("$ %s %s\n%s", hullmarkPath(), strings.Join(args, " "), out)
				return s, nil
			}
		}
		if err := pause(ctx, answerEvery); err != nil {
			return s, err
		}
	}
}

// hullmarkEnds runs a command that has to end with an exit code.
func (d *demo) hullmarkEnds(ctx context.Context, code int, args ...string) error {
	err := d.hullmark(ctx, args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Exited() && exit.ExitCode() == code {
		return nil
	}
	return fmt.Errorf("it ended with %v, want exit code %d", err, code)
}
