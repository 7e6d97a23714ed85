// Package run makes a machine a node of a Kubernetes cluster: it lets the real kubeadm judge documents
// before anything changes, runs kubeadm init or kubeadm join as a systemd unit, follows its phases, and waits until the
// node is Ready.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/hullmark/hullmark/kubeadm"
)

// Program is kubeadm in the verity root.
const Program = "/usr/bin/kubeadm"

// Validate lets the kubeadm at program judge documents. It changes nothing. Kubeadm's init only warns of unknown fields, its
// validation refuses them; so this comes first. The error holds kubeadm's own words. Kubeadm wants the file that a
// JoinConfiguration discovers the cluster by to exist, but kubeadm.DiscoveryFile lies on a disk that is not mounted yet: it is judged
// under the name of a file that does.
func Validate(ctx context.Context, program string, documents []byte) error {
	if len(documents) > kubeadm.MaxDocuments {
		return fmt.Errorf("validate kubeadm documents: %d bytes, at most %d are allowed", len(documents), kubeadm.MaxDocuments)
	}
	if len(bytes.TrimSpace(documents)) == 0 {
		return errors.New("validate kubeadm documents: there are none")
	}
	cmd := exec.CommandContext(ctx, program, "config", "validate", "--config", "/dev/stdin")
	cmd.Stdin = bytes.NewReader(bytes.ReplaceAll(documents, []byte(kubeadm.DiscoveryFile), []byte(os.DevNull)))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	var refused *exec.ExitError
	if errors.As(err, &refused) {
		return fmt.Errorf("validate kubeadm documents: %s (correct the document and start again)", Cause(said.String()))
	}
	if err != nil {
		return fmt.Errorf("validate kubeadm documents: run %s: %w", program, err)
	}
	return nil
}

// maxCause is how many lines of kubeadm's output an error repeats.
const maxCause = 12

// Cause picks out of kubeadm's output what went wrong: its error, the failed checks before it and the lines under it, without
// the usage that follows; if it names none, its last words.
func Cause(output string) string {
	var lines, checks []string
	for line := range strings.Lines(output) {
		line = redact(strings.TrimRight(line, "\n"))
		switch {
		case strings.HasPrefix(line, "error"):
			lines = append([]string{line}, checks...)
		case strings.HasPrefix(line, "To see the stack trace"):
			return strings.Join(lines, "; ")
		case strings.HasPrefix(strings.TrimSpace(line), "[ERROR ") && len(checks) < maxCause-1:
			checks = append(checks, strings.TrimSpace(line))
			lines = append(lines, strings.TrimSpace(line))
		case strings.TrimSpace(line) != "":
			lines = append(lines, strings.TrimSpace(line))
		}
		lines = lines[max(0, len(lines)-maxCause):]
	}
	return strings.Join(lines, "; ")
}
