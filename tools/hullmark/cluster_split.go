package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/shares"
	"github.com/hullmark/hullmark/internal/nodump"
)

// splitOptions are the flags of `hullmark cluster split`.
type splitOptions struct {
	operatorOptions
	shareOptions
	threshold int
}

// shareOptions is the flag of the verbs that open shares.
type shareOptions struct {
	passphrases []string
}

func (o *shareOptions) addFlag(cmd *cobra.Command, otherwise string) {
	cmd.Flags().StringArrayVar(&o.passphrases, "share-passphrase-file", nil, "`FILE` whose first line is a share's passphrase; one for each share, in their order (default: "+otherwise+")")
}

// checkFiles wants a passphrase's file for each share, or for none.
func (o *shareOptions) checkFiles(paths []string) error {
	if n := len(o.passphrases); n > 0 && n != len(paths) {
		return withCode(exitUsage, fmt.Errorf("--share-passphrase-file: %d for %d shares; name one for each, in their order, or none", n, len(paths)))
	}
	return nil
}

// file is that of a share's passphrase; empty if it is asked for.
func (o *shareOptions) file(i int) string {
	if len(o.passphrases) == 0 {
		return ""
	}
	return o.passphrases[i]
}

func newClusterSplitCommand() *cobra.Command {
	var o splitOptions
	cmd := &cobra.Command{
		Use:   "split SHARE SHARE...",
		Short: "Divide the root's key among several people, so that some of them sign together",
		Long: `Divide the root's key among several people, so that some of them sign together.

Each SHARE is a file to make, for one person, encrypted under a passphrase of that person's. The cluster file has no root's key any more: what needs the root's
signature takes --threshold of the shares, by --root-signer 'hullmark cluster sign SHARE SHARE'. Fewer are of no use. Whoever signs has the whole key in memory
for that moment, so sign on a machine that all of them trust. Each share is checked when it is opened.

Earlier copies of the cluster file have the key still: destroy them, or exchange the root first (hullmark cluster rotate root). The same holds for the shares of somebody
who leaves: exchange the root, with the shares of the others, and divide the new one.`,
		Example: "  hullmark cluster split alice.share bob.share carol.share --threshold 2 --cluster prod.cluster",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 || len(args) > shares.MaxShares {
				return withCode(exitUsage, fmt.Errorf("cluster split: name 2 to %d files to make, one for each person", shares.MaxShares))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.run(args, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("cluster split: %w", err)
			}
			return nil
		},
	}
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	cmd.Flags().IntVar(&o.threshold, "threshold", 0, "how many shares sign together, 2 or more")
	o.addFlag(cmd, "ask twice for each")
	require(cmd, "threshold")
	return cmd
}

func (o *splitOptions) run(paths []string, out, notes io.Writer) error {
	for i, path := range paths {
		if _, err := os.Lstat(path); err == nil || slices.Contains(paths[:i], path) {
			return fmt.Errorf("%s exists already, or is named twice; a share is never overwritten", path)
		}
	}
	if err := o.checkFiles(paths); err != nil {
		return err
	}
	if o.threshold < 2 || o.threshold > len(paths) {
		return withCode(exitUsage, fmt.Errorf("--threshold %d: want 2 to %d, the number of shares", o.threshold, len(paths)))
	}
	file, err := o.open(notes)
	if err != nil {
		return err
	}
	if err := shares.Divide(file, o.threshold, len(paths), func(all []shares.Share) error { return o.keep(paths, all, notes) }); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "the root's key is in %d shares, of which %d sign together, and not in %s any more; destroy the copies of that from before\n", len(paths), o.threshold, o.cluster)
	return err
}

// keep stores each share under its holder's passphrase, and compares what it reads back. If one cannot be kept, none is.
func (o *splitOptions) keep(paths []string, all []shares.Share, notes io.Writer) (err error) {
	made := 0
	defer func() {
		for _, path := range paths[:made] {
			if err != nil {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	for i, path := range paths {
		fmt.Fprintf(notes, "share %d of %d, %s\n", i+1, len(paths), path)
		passphrase, err := newPassphrase(o.file(i), notes)
		if err != nil {
			return err
		}
		sealed, err := all[i].Seal(passphrase, cluster.WorkFactor)
		if err != nil {
			return err
		}
		if err := writeNew(path, sealed, 0o600); err != nil {
			return err
		}
		made++
		again, err := readShare(path, passphrase)
		if err != nil {
			return err
		}
		if !again.Equal(all[i]) {
			return fmt.Errorf("%s: what was read back is not the share that was made", path)
		}
		passphrase.Wipe()
	}
	return nil
}

func readShare(path string, passphrase hullmark.Secret) (shares.Share, error) {
	sealed, err := readBounded(path, shares.MaxFile)
	if err != nil {
		return shares.Share{}, err
	}
	s, err := shares.Open(sealed, passphrase)
	if err != nil {
		return shares.Share{}, fmt.Errorf("%s: %w", path, err)
	}
	s.File = path
	return s, nil
}

func newClusterSignCommand() *cobra.Command {
	var o shareOptions
	cmd := &cobra.Command{
		Use:   "sign SHARE SHARE...",
		Short: "Sign as the root with shares of its key, for --root-signer",
		Long: `Sign as the root with shares of its key, for --root-signer.

What is to be signed comes from standard input, and is said on standard error before anything is asked: a policy, an operator's certificate or another one of the
root's. Anything else is refused. The passphrases are asked for on the terminal. Once the first share is open it is said whether a root's certificate is its own or
hands over to another, and another root's policy is refused. The signature goes to standard output: ECDSA P-256 with SHA-256, in ASN.1 DER.`,
		Example: "  hullmark policy revoke-operators --cluster prod.cluster --root-signer 'hullmark cluster sign alice.share bob.share'",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			signature, err := o.sign(args, cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("cluster sign: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(signature)
			return err
		},
	}
	o.addFlag(cmd, "ask for each on the terminal")
	return cmd
}

func (o *shareOptions) sign(paths []string, in io.Reader, notes io.Writer) ([]byte, error) {
	if err := o.checkFiles(paths); err != nil {
		return nil, err
	}
	message, err := io.ReadAll(io.LimitReader(in, cluster.MaxAsked+1))
	if err != nil {
		return nil, err
	}
	if len(message) > cluster.MaxAsked {
		return nil, fmt.Errorf("standard input: more than %d bytes", cluster.MaxAsked)
	}
	asked, err := cluster.Asked(message)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(notes, oneLine("to be signed: "+asked.Text))
	var some []shares.Share
	for i, path := range paths {
		passphrase, err := o.passphrase(i, path)
		if err != nil {
			return nil, err
		}
		s, err := readShare(path, passphrase)
		passphrase.Wipe()
		if err != nil {
			return nil, err
		}
		if some = append(some, s); i > 0 {
			continue // Of one root all have to be.
		}
		switch more, err := asked.By(s.Root); {
		case err != nil:
			return nil, err
		case more != "":
			fmt.Fprintln(notes, oneLine("to be signed: "+more))
		}
	}
	return shares.Sign(message, some)
}

// passphrase reads a share's passphrase, or asks for it on the terminal: standard input is what is to be signed.
func (o *shareOptions) passphrase(i int, path string) (hullmark.Secret, error) {
	if err := nodump.Process(); err != nil {
		return hullmark.Secret{}, err
	}
	if file := o.file(i); file != "" {
		return readPassphraseFile(file)
	}
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return hullmark.Secret{}, withCode(exitUsage, errors.New("no terminal to ask for a share's passphrase on: name files (--share-passphrase-file)"))
	}
	defer terminal.Close()
	fmt.Fprint(terminal, oneLine("Passphrase of "+path)+": ")
	typed, err := term.ReadPassword(int(terminal.Fd()))
	fmt.Fprintln(terminal)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("read the passphrase: %w", err)
	}
	return hullmark.NewSecret(typed), nil
}
