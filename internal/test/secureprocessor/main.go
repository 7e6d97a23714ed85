// Secureprocessor plays the hardware of confidential machines for virtual ones that have none: it measures what is started, by code
// of its own that shares nothing with what predicts it, and signs reports under roots that it makes for itself, which no verifier
// trusts unless a policy names them as roots for tests.
//
// It listens on one socket for each way of starting a machine. `hullmark vm --secure-processor SOCKET` says there what it is about
// to start, and leaves its TPM to the processor for a moment, which puts a report there as the paravisor of Azure does. What
// Azure's host answers over HTTP to its guests, the processor answers to whoever asks it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
)

// maker stands for a test where the makers of roots, reports and claims want one: what fails ends the program.
type maker struct{ testing.TB }

func (maker) Helper() {}

func (maker) Fatal(arguments ...any) {
	fmt.Fprintln(os.Stderr, append([]any{"secure processor:"}, arguments...)...)
	os.Exit(1)
}

func main() {
	dir := flag.String("dir", "", "`FOLDER` that gets the sockets, and what a policy has to name")
	metadata := flag.String("metadata", "", "`ADDRESS` of the service that answers guests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *dir == "" || *metadata == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "secure processor: want --dir FOLDER --metadata ADDRESS")
		os.Exit(2)
	}
	if err := run(ctx, *dir, *metadata); err != nil {
		fmt.Fprintln(os.Stderr, "secure processor:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, metadata string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	p := newProcessor()
	http, err := net.Listen("tcp", metadata)
	if err != nil {
		return err
	}
	defer http.Close()
	go p.answerGuests(http)
	for name, way := range ways {
		socket, err := net.Listen("unix", filepath.Join(dir, name+".sock"))
		if err != nil {
			return err
		}
		defer socket.Close()
		go p.serve(socket, way)
	}
	// Last, so that whoever waits for it finds the rest.
	for name, content := range p.demands() {
		text, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o600); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// answerGuests answers until the listener is closed.
func (p *processor) answerGuests(listener net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metadata/THIM/amd/certification", p.certification)
	mux.HandleFunc("POST /acc/tdquote", p.quote)
	if err := http.Serve(listener, mux); err != nil && !errors.Is(err, net.ErrClosed) {
		fmt.Fprintln(os.Stderr, "secure processor:", err)
	}
}
