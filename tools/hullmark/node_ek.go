package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxtpm"
	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/cluster/operate"
)

// nodeEKOptions are the flags of `hullmark node ek`.
type nodeEKOptions struct {
	operatorOptions
	device string
	files  []string
}

func newNodeEKCommand() *cobra.Command {
	var o nodeEKOptions
	cmd := &cobra.Command{
		Use:   "ek",
		Short: "Tell which endorsement keys a machine has, and who certified them",
		Long: `Tell which endorsement keys a machine has, and who certified them: what a policy's rule, --ekid, --ek-ca and --ek-root want.

With --tpm it reads the TPM of the machine that it runs on, under any Linux, and lists every key that is certified. With --node it asks a node that waits
for its operator, over a channel that the node opens to its cluster's operator alone; the node proves that its TPM holds the key that it shows,
which is the one that it will be known by, and gets nothing. It need not be a member of anything.

A machine shows the first key that its maker certified, in the order rsa-2048, ecc-p256, rsa-2048-high, ecc-p256-high, ecc-p384-high, rsa-3072-high;
the one whose disk it has, before all others; and rsa-2048 if none is certified.`,
		Example: `  hullmark node ek --tpm /dev/tpmrm0
  hullmark node ek --cluster prod.cluster --node 192.0.2.7 --ca OptigaRsaMfrCA056.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			atHand, err := readCertificates("--ca", o.files)
			if err != nil {
				return err
			}
			keys, err := o.keys(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("node ek: %w", tell(err))
			}
			return writeEKs(cmd.OutOrStdout(), keys, atHand)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "", "cluster `FILE`, with --node")
	f.StringVar(&o.passphraseFile, "passphrase-file", "", "`FILE` whose first line is the cluster file's passphrase (default: ask)")
	o.rootKey.addFlag(cmd)
	f.StringVar(&o.node, "node", "", "the node's `HOST[:PORT]` (port 7443 if none)")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to keep dialling a node that is still booting")
	f.StringVar(&o.device, "tpm", "", "the `DEVICE` of this machine's TPM, such as /dev/tpmrm0")
	f.StringArrayVar(&o.files, "ca", nil, "`FILE` of certificates that may be of the keys' chains; repeat for more")
	return cmd
}

// keys asks this machine's TPM, or a node.
func (o *nodeEKOptions) keys(ctx context.Context, notes io.Writer) ([]shownEK, error) {
	switch local := o.device != ""; {
	case local == (o.node != ""), local != (o.cluster == ""):
		return nil, withCode(exitUsage, errors.New("want --tpm, or --node with --cluster"))
	case local:
		return localEKs(o.device)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	file, err := o.open(notes)
	if err != nil {
		return nil, err
	}
	claims, err := operate.Identify(ctx, file, o.at(notes))
	if err != nil {
		return nil, err
	}
	return []shownEK{remoteEK(claims)}, nil
}

func remoteEK(claims attest.Claims) shownEK {
	ek := shownEK{kind: "the one that the node shows, and proved to hold", id: claims.EKID}
	if claims.EKCertificate != nil {
		ek.certificate = claims.EKCertificate.Encode()
	}
	return ek
}

func localEKs(device string) ([]shownEK, error) {
	tpm, err := linuxtpm.Open(device)
	if err != nil {
		return nil, fmt.Errorf("TPM %s: %w", device, err)
	}
	keys, err := listEKs(tpm)
	return keys, errors.Join(err, tpm.Close())
}

func listEKs(tpm transport.TPM) (shown []shownEK, err error) {
	keys, err := prover.EKs(tpm)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		kind := key.Template.Name
		if i == 0 {
			kind += ", by which the machine is known unless its disk is another key's"
		}
		shown = append(shown, shownEK{kind: kind, id: hullmark.EKIDOf(key.Public), certificate: key.Certificate, wrong: key.Wrong})
	}
	return shown, nil
}

func writeEKs(out io.Writer, keys []shownEK, atHand []*x509.Certificate) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, key := range keys {
		writeEK(t, key, atHand)
	}
	return t.Flush()
}
