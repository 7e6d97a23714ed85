package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster"
)

// rootSignerVariable names the environment's variable for who has several commands to give.
const rootSignerVariable = "HULLMARK_ROOT_SIGNER"

// rootOptions is the flag of the verbs for which the cluster's root may have to sign. Without addFlag, nobody but the cluster file does.
//
// The command is not in the cluster file: who can write that file, or hand another one over, would run programs on the machine of
// whoever opens it.
type rootOptions struct {
	cmd    *cobra.Command
	signer string
}

func (o *rootOptions) addFlag(cmd *cobra.Command) {
	o.cmd = cmd
	cmd.Flags().StringVar(&o.signer, "root-signer", "", "`COMMAND` that signs with the root's key, if that is not in the cluster file (default: $"+rootSignerVariable+")")
}

// command is what signs with the root's key; empty if nobody said.
func (o *rootOptions) command() string { return cmp.Or(o.signer, os.Getenv(rootSignerVariable)) }

// signFor has the command sign for a cluster file whose root's key is elsewhere.
func (o *rootOptions) signFor(file *cluster.File) error {
	switch {
	case o.cmd == nil || o.command() == "":
		return nil // What needs the root says so.
	case file.Cluster.RootElsewhere():
		return file.Cluster.SignBy(signRoot(o.cmd.Context(), o.command(), o.cmd.ErrOrStderr()))
	case o.signer == "":
		return nil // The variable is for another cluster's file.
	}
	return withCode(exitUsage, errors.New("--root-signer: this cluster file has the root's key, or was lent without it; no command signs for it"))
}

// signRoot asks a command, as keys sign does.
func signRoot(ctx context.Context, command string, notes io.Writer) func([]byte) ([]byte, error) {
	signer := commandSigner{ctx: ctx, command: command, notes: notes}
	return func(message []byte) ([]byte, error) { return signer.SignMessage(nil, message, nil) }
}

// readRoot reads the public key of a root whose key is elsewhere, and says that the command signs with it. Flags are what the two are
// called, for errors.
func readRoot(ctx context.Context, publicKey, command, flags string, notes io.Writer) (root cluster.RemoteRoot, err error) {
	if publicKey == "" || command == "" {
		return root, withCode(exitUsage, fmt.Errorf("a root's key that is elsewhere needs both %s", flags))
	}
	root.Sign = signRoot(ctx, command, notes)
	root.Public, err = readPublicKey(publicKey)
	return root, err
}
