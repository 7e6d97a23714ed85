package main

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// signerTime is how long a signer may take: a person may have to touch a token or to agree.
const signerTime = 5 * time.Minute

// maxSignature is the longest answer of a signer, in bytes.
const maxSignature = 64 << 10

// commandSigner is a private key that is elsewhere: in a token, a cloud's key service, another machine. A command of the shell
// gets the message on standard input and answers with the signature over it on standard output, without any encoding around it: for a
// key of Secure Boot RSASSA-PKCS1-v1_5 with SHA-256, for a cluster's root what cluster.RemoteRoot takes. What it says on standard
// error is shown, as far as it is printable.
type commandSigner struct {
	ctx     context.Context
	command string
	public  crypto.PublicKey
	notes   io.Writer
	limit   time.Duration // zero: signerTime
}

func (s commandSigner) Public() crypto.PublicKey { return s.public }

// Sign is not there: a digest is not what the command gets.
func (s commandSigner) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("a signer's command signs messages, not digests")
}

// SignMessage asks the command. The answer is not checked here.
func (s commandSigner) SignMessage(_ io.Reader, message []byte, _ crypto.SignerOpts) ([]byte, error) {
	limit := s.limit
	if limit == 0 {
		limit = signerTime
	}
	late := fmt.Errorf("no answer within %v", limit)
	ctx, cancel := context.WithTimeoutCause(s.ctx, limit, late)
	defer cancel()
	var answer bounded
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", s.command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(message), &answer, safe{s.notes}
	cmd.WaitDelay = time.Second // what the command started may hold its output open
	err := cmd.Run()
	switch cause := context.Cause(ctx); {
	case cause != nil:
		err = cause
	case answer.full:
		err = fmt.Errorf("it answered with more than %d bytes", maxSignature)
	case errors.Is(err, exec.ErrWaitDelay) && len(answer.content) > 0:
		err = nil // Something that it left running holds its output open, as ssh does; whoever asked checks the answer.
	case err == nil && len(answer.content) == 0:
		err = errors.New("it answered with nothing")
	}
	if err != nil {
		return nil, fmt.Errorf("signer %q: %w; nothing was signed", s.command, err)
	}
	return answer.content, nil
}

// bounded takes no more than maxSignature bytes.
type bounded struct {
	content []byte
	full    bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.full = len(b.content)+len(p) > maxSignature; b.full {
		return 0, io.ErrShortWrite
	}
	b.content = append(b.content, p...)
	return len(p), nil
}
