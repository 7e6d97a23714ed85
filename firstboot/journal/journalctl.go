package journal

import (
	"context"
	"io"
	"os"
	"os/exec"
)

// Folder is where journald keeps what it has written on the state disk.
const Folder = "/var/log/journal"

// Journalctl exports a folder of journals (journalctl(1)).
func Journalctl(folder string) func(context.Context, string) (io.ReadCloser, error) {
	return func(ctx context.Context, cursor string) (io.ReadCloser, error) {
		args := []string{"--directory=" + folder, "--output=export", "--output-fields=" + fields, "--follow", "--lines=all", "--quiet"}
		if cursor != "" {
			args = append(args, "--after-cursor="+cursor)
		}
		cmd := exec.CommandContext(ctx, "/usr/bin/journalctl", args...)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return &child{ReadCloser: out, cmd: cmd}, nil
	}
}

// child is what a program prints; the program ends with it.
type child struct {
	io.ReadCloser
	cmd *exec.Cmd
}

func (c *child) Close() error {
	_ = c.ReadCloser.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait() // It was killed.
	return nil
}
