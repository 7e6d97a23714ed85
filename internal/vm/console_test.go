package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestConsoleWait(t *testing.T) {
	c, err := openConsole(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	found := make(chan string)
	go func() {
		line, err := c.wait(t.Context(), regexp.MustCompile(`^agent: ready`))
		found <- fmt.Sprint(line, err)
	}()
	for _, part := range []string{"noise agent: ready\r\nag", "ent: re", "ady on 7443\r\n"} {
		fmt.Fprint(c, part)
		time.Sleep(5 * time.Millisecond)
	}
	if got := <-found; !strings.HasPrefix(got, "agent: ready") {
		t.Errorf("got %q", got)
	}
	c.close()
	if _, err := c.wait(t.Context(), regexp.MustCompile("never")); !errors.Is(err, errConsoleClosed) {
		t.Error(err)
	}
}

func TestConsoleWaitEndsWithItsContext(t *testing.T) {
	c, err := openConsole(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.wait(ctx, regexp.MustCompile("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestConsoleIsBounded(t *testing.T) {
	dir := t.TempDir()
	c, err := openConsole(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	block := []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 1<<14))
	for written := 0; written < maxConsoleLog+4*len(block); written += len(block) {
		_, _ = c.Write(block)
	}
	fmt.Fprintln(c, "the end")
	if line, err := c.wait(t.Context(), regexp.MustCompile("^the end")); line != "the end" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	c.close()
	info, err := os.Stat(filepath.Join(dir, consoleName))
	if err != nil || info.Size() > maxConsoleLog+int64(len(block))+100 {
		t.Errorf("log of %d bytes, %v", info.Size(), err)
	}
	if len(c.window) > consoleWindow {
		t.Errorf("window of %d bytes", len(c.window))
	}
}

func TestConsoleKeepsTheLogBefore(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"first", "second"} {
		c, err := openConsole(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, text)
		c.close()
	}
	previous, err := os.ReadFile(filepath.Join(dir, previousName))
	if err != nil || string(previous) != "first" {
		t.Errorf("%q, %v", previous, err)
	}
}
