package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/kubeadm"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/measurements"
)

// renderOptions are the flags of `hullmark render`.
type renderOptions struct {
	kubeadm, policy     string
	against, kubeconfig string
	out, output         string
}

func newRenderCommand() *cobra.Command {
	var o renderOptions
	cmd := &cobra.Command{
		Use:   "render FILE",
		Short: "Write out everything that a cluster document stands for",
		Long: `Write out everything that a cluster document stands for.

That is the documents of kubeadm init, a JoinConfiguration for each pool, a node configuration for each pool or node, the files and hooks of
each pool, and a draft of the policy. The image's kubeadm judges its documents before anything is written. The same document gives the same bytes.

With --against or --kubeconfig the differences are shown instead, as a unified diff from what is there to what the document says.

Exit codes: 0 rendered (or no difference), 1 failed, 2 usage, 3 there are differences.`,
		Example: "  hullmark render prod.yaml --out rendered\n  hullmark render prod.yaml --kubeconfig admin.conf",
		Args:    exactArg("render", "the cluster document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output != "text" && o.output != "json" {
				return withCode(exitUsage, fmt.Errorf("render: output %q: want text or json", o.output))
			}
			if err := o.run(cmd.Context(), cmd.OutOrStdout(), args[0]); err != nil {
				return fmt.Errorf("render: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeadm, "kubeadm", "", "the image's kubeadm `PROGRAM` (default: the one beside what out/kubectl leads to)")
	f.StringVar(&o.policy, "policy", "", "policy `FILE` in force, as hullmark policy show -o json prints it; the draft keeps all but its members and pools")
	f.StringVar(&o.against, "against", "", "show the differences from an earlier render in `DIR`")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "show the differences from the running cluster of this kubeconfig `FILE`")
	f.StringVar(&o.out, "out", "", "write the files into a new folder `DIR`, all or none")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of what is printed: text or json")
	return cmd
}

// run renders, validates, compares, writes and prints, in this order.
func (o *renderOptions) run(ctx context.Context, w io.Writer, file string) error {
	files, err := o.render(file)
	if err != nil {
		return err
	}
	program, err := o.program()
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := validate(ctx, program, f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	differences, err := o.compare(ctx, program, files)
	if err != nil {
		return err
	}
	if o.out != "" {
		if err := writeFolder(o.out, files); err != nil {
			return err
		}
	}
	if err := o.print(w, files, differences); err != nil {
		return err
	}
	if differences != "" {
		return withCode(exitMismatch, errors.New("there are differences"))
	}
	return nil
}

// render reads the cluster document, and the policy if there is one.
func (o *renderOptions) render(file string) ([]render.Rendered, error) {
	text, err := readBounded(file, render.MaxCluster)
	if err != nil {
		return nil, err
	}
	document, err := render.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var policy measurements.Policy
	if o.policy != "" {
		if text, err = readBounded(o.policy, measurements.MaxPolicy); err != nil {
			return nil, err
		}
		if policy, err = measurements.ParsePolicy(text); err != nil {
			return nil, fmt.Errorf("%s: %w", o.policy, err)
		}
	}
	files, err := render.Render(document, policy)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return files, nil
}

// program finds the image's kubeadm: `hullmark build` leaves a link to kubectl beside the image, and kubeadm lies beside that.
func (o *renderOptions) program() (string, error) {
	if o.kubeadm != "" {
		return o.kubeadm, nil
	}
	kubectl, err := os.Readlink(filepath.Join("out", "kubectl"))
	if err != nil {
		return "", fmt.Errorf("find the image's kubeadm: %w; next: build the image (hullmark build), or name a kubeadm of its version (--kubeadm)", err)
	}
	return filepath.Join(filepath.Dir(kubectl), "kubeadm"), nil
}

// validate lets kubeadm judge the documents that are its own. On a node, a file says where the cluster is; kubeadm also takes
// an address that it does not dial, which stands for it here.
func validate(ctx context.Context, program string, f render.Rendered) error {
	if !f.Kubeadm {
		return nil
	}
	return kubeadmrun.Validate(ctx, program, bytes.ReplaceAll(f.Content, []byte(kubeadm.DiscoveryFile), []byte("https://discovery.invalid/")))
}

// compare returns a unified diff from what --against and --kubeconfig name.
func (o *renderOptions) compare(ctx context.Context, program string, files []render.Rendered) (string, error) {
	var differences []byte
	if o.against != "" {
		earlier, err := readFolder(o.against)
		if err != nil {
			return "", fmt.Errorf("--against: %w", err)
		}
		differences = render.Compare(o.against, earlier, files)
	}
	if o.kubeconfig != "" {
		running, err := kubeadmrun.Running(ctx, kubeadmrun.Access{Kubeconfig: o.kubeconfig, Read: os.ReadFile})
		if err != nil {
			return "", err
		}
		wanted, err := kubeadmrun.WouldStore(ctx, program, render.Contents(files)[render.InitFile])
		if err != nil {
			return "", err
		}
		differences = append(differences, diff.Diff("running/ClusterConfiguration", running.ClusterConfiguration, "ClusterConfiguration", wanted.ClusterConfiguration)...)
		differences = append(differences, diff.Diff("running/KubeletConfiguration", running.KubeletConfiguration, "KubeletConfiguration", wanted.KubeletConfiguration)...)
	}
	return string(differences), nil
}

// readFolder reads the files that an earlier render wrote, by their names in it.
func readFolder(folder string) (map[string][]byte, error) {
	if _, err := os.Stat(filepath.Join(folder, render.InitFile)); err != nil {
		return nil, fmt.Errorf("%w; name the folder of an earlier render", err)
	}
	files := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(folder), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !entry.Type().IsRegular() || len(files) == maxEarlier {
			return fmt.Errorf("%s: no folder of an earlier render: it holds other things than files, or too many", oneLine(name))
		}
		files[name], err = readBounded(filepath.Join(folder, name), measurements.MaxPolicy)
		return err
	})
	return files, err
}

// maxEarlier bounds how many files are read of an earlier render.
const maxEarlier = 20000

// writeFolder writes the files below a new folder, which has its name only when it is whole.
func writeFolder(folder string, files []render.Rendered) error {
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		return withCode(exitUsage, fmt.Errorf("--out: %s is there already; name a new folder, and compare with that one (--against)", folder))
	}
	err := atomicfile.Folder(folder, 0o755, func(dir string) error {
		for _, f := range files {
			name := filepath.Join(dir, filepath.FromSlash(f.Name))
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			if err := writeNew(name, f.Content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

// renderedJSON is the JSON that hullmark render writes.
type renderedJSON struct {
	// Files are the contents by name.
	Files map[string]string `json:"files"`
	// Diff is the unified diff that was asked for; it is empty if there are no differences, and absent if none was asked for.
	Diff *string `json:"diff,omitempty"`
}

// print prints the differences if they were asked for, else the names of the files that were written, else the files.
func (o *renderOptions) print(w io.Writer, files []render.Rendered, differences string) error {
	compared := o.against != "" || o.kubeconfig != ""
	if o.output == "json" {
		out := renderedJSON{Files: map[string]string{}}
		for _, f := range files {
			out.Files[f.Name] = string(f.Content)
		}
		if compared {
			out.Diff = &differences
		}
		return writeJSON(w, out)
	}
	if compared {
		_, err := io.WriteString(w, differences)
		return err
	}
	for _, f := range files {
		text := fmt.Sprintf("-- %s --\n%s", f.Name, f.Content)
		if o.out != "" {
			text = filepath.Join(o.out, f.Name) + "\n"
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return nil
}
