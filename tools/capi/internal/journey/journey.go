// Package journey runs the commands of a page of the documentation, as they stand there.
package journey

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Journey is the commands of one section of a page, block by block.
type Journey struct {
	// Dir is the folder that they run in.
	Dir string
	// Env is their environment, as os/exec has it.
	Env []string
	// Out gets the commands, and what they print.
	Out io.Writer

	blocks []string
}

// Read returns the blocks of shell commands below a heading of a page, up to the next one of its rank.
func Read(page, heading string) (*Journey, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		return nil, fmt.Errorf("%s has no heading %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n"+strings.Fields(heading)[0]+" ")
	j := &Journey{Out: io.Discard}
	for {
		var block string
		if _, section, found = strings.Cut(section, "\n```sh\n"); !found {
			break
		}
		if block, section, found = strings.Cut(section, "\n```\n"); !found {
			return nil, fmt.Errorf("%s: a block below %q does not end", page, heading)
		}
		j.blocks = append(j.blocks, block)
	}
	if len(j.blocks) == 0 {
		return nil, fmt.Errorf("%s: %q has no commands", page, heading)
	}
	return j, nil
}

// Len is how many blocks there are.
func (j *Journey) Len() int { return len(j.blocks) }

// Run runs a block with bash, which ends at the first command that fails, and with ctx.
func (j *Journey) Run(ctx context.Context, i int) error {
	for line := range strings.Lines(j.blocks[i] + "\n") {
		fmt.Fprint(j.Out, "$ ", line)
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", j.blocks[i])
	cmd.Dir, cmd.Env = j.Dir, j.Env
	cmd.Stdout, cmd.Stderr = j.Out, j.Out
	// What bash started ends with it, or it would hold Out open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("block %d of the page: %w", i+1, err)
	}
	return nil
}
