package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
)

func newClusterEncryptCommand() *cobra.Command {
	var o operatorOptions
	cmd := &cobra.Command{
		Use:   "encrypt PURPOSE",
		Short: "Encrypt a secret for the cluster document, which is public",
		Long: `Encrypt a secret for the cluster document, which is public.

The secret comes from standard input, and the text to write into the document goes to standard output. PURPOSE is the one place where it may
stand: the URL of a registry or mirror, for USER:PASSWORD as its credentials; or the path of a file on the nodes, for all or a part of its content.
Nodes of the pool get the secret itself, with their tickets. Who holds the cluster file, or a control plane's disk under its key, can read it.`,
		Example: "  hullmark cluster encrypt https://mirror.example:5000 --cluster prod.cluster < user-and-password",
		Args:    exactArg("cluster encrypt", "what the secret is for: https://…, or a path on the nodes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.encrypt(args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	return cmd
}

func (o *operatorOptions) encrypt(purpose string, in io.Reader, out, notes io.Writer) error {
	if !strings.HasPrefix(purpose, "https://") && !strings.HasPrefix(purpose, "/") || !hullmark.ValidPurpose(purpose) {
		return withCode(exitUsage, fmt.Errorf("cluster encrypt: %.80q: want the URL of a registry, https://…, or the path of a file on the nodes", purpose))
	}
	secret, err := readPlaintext(purpose, in)
	if err != nil {
		return withCode(exitUsage, fmt.Errorf("cluster encrypt: %w", err))
	}
	defer secret.Wipe()
	file, err := o.open(notes)
	if err != nil {
		return err
	}
	policy, err := file.Cluster.OpenPolicy()
	if err != nil {
		return err
	}
	text, err := file.Cluster.Keys.Encrypt(policy.First(file.Cluster.ID()), purpose, secret)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

// readPlaintext reads what is to be encrypted: of a registry's user and password it makes what an HTTP header says of them (RFC 7617).
func readPlaintext(purpose string, in io.Reader) (hullmark.Secret, error) {
	text, err := io.ReadAll(io.LimitReader(in, hullmark.MaxPlaintext+1))
	if err != nil {
		return hullmark.Secret{}, err
	}
	if len(text) == 0 || len(text) > hullmark.MaxPlaintext {
		return hullmark.Secret{}, fmt.Errorf("standard input: want a secret of 1 to %d bytes", hullmark.MaxPlaintext)
	}
	if strings.HasPrefix(purpose, "/") {
		return hullmark.NewSecret(text), nil
	}
	defer clear(text)
	line := text
	for len(line) > 0 && (line[len(line)-1] == '\n' || line[len(line)-1] == '\r') {
		line = line[:len(line)-1]
	}
	colon := false
	for _, b := range line {
		if b < ' ' || b == 0x7f {
			return hullmark.Secret{}, errors.New("standard input: want one line, USER:PASSWORD")
		}
		colon = colon || b == ':'
	}
	if !colon || line[0] == ':' {
		return hullmark.Secret{}, errors.New("standard input: want one line, USER:PASSWORD")
	}
	const scheme = "Basic "
	header := make([]byte, len(scheme)+base64.StdEncoding.EncodedLen(len(line)))
	copy(header, scheme)
	base64.StdEncoding.Encode(header[len(scheme):], line)
	return hullmark.NewSecret(header), nil
}
