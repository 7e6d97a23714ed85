package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"
)

// started is what a secure processor is told of a machine that is about to start: its firmware's code, how many processors it has,
// and where its TPM can be reached until the answer.
type started struct {
	Firmware   string `json:"firmware"`
	Processors int    `json:"processors"`
	TPM        string `json:"tpm"`
}

const (
	// processorPatience bounds what a secure processor takes, and maxProcessorAnswer what it says, in bytes.
	processorPatience  = time.Minute
	maxProcessorAnswer = 4 << 10
)

// tellProcessor has a secure processor measure the machine, and leave in its TPM what it has to say of it.
func (m *Machine) tellProcessor(ctx context.Context, t toolset) error {
	socket := filepath.Join(m.runtime, "processor.sock")
	tpm, err := startSWTPM(ctx, t, filepath.Join(m.config.Dir, tpmName), m.runtime, "--server", "type=unixio,path="+t.inside(socket), "--flags", "not-need-init,startup-clear")
	if err != nil {
		return err
	}
	defer tpm.kill()
	if err := awaitSocket(ctx, socket, tpm); err != nil {
		return err
	}
	err = askProcessor(ctx, m.config.SecureProcessor, started{Firmware: m.files.Firmware, Processors: m.config.CPUs, TPM: socket})
	if err != nil {
		return fmt.Errorf("vm: secure processor %s: %w", m.config.SecureProcessor, err)
	}
	if !tpm.ended(processorPatience) {
		return fmt.Errorf("vm: secure processor %s keeps the machine's TPM", m.config.SecureProcessor)
	}
	return nil
}

func askProcessor(ctx context.Context, socket string, machine started) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(processorPatience)); err != nil {
		return err
	}
	if err := json.NewEncoder(conn).Encode(machine); err != nil {
		return err
	}
	var answer struct {
		Error string `json:"error"`
	}
	if err := json.NewDecoder(io.LimitReader(conn, maxProcessorAnswer)).Decode(&answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}
