package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// The second interrupt ends a program that does not look at its context.
func TestSecondInterrupt(t *testing.T) {
	const child = "HULLMARK_TEST_INTERRUPT"
	if os.Getenv(child) != "" {
		ctx, _ := untilInterrupted()
		fmt.Println("begins")
		<-ctx.Done()
		fmt.Println("interrupted")
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSecondInterrupt$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "interrupted" {
			time.Sleep(100 * time.Millisecond) // until the second is nobody's
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			break
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("it ended by %v", err)
	}
}
