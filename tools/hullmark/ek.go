package main

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
)

func newEKCommand() *cobra.Command {
	return group("ek", "Know the makers of TPMs, and what they certify", newEKMakersCommand(), newEKShowCommand())
}

func newEKMakersCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "makers",
		Short: "List the CAs of TPMs' makers that are known",
		Long: `List the CAs of TPMs' makers that are known, by the SHA-256 of their certificates.

None of them is trusted: a policy holds the certificates that it trusts, which you fetch from where their maker publishes them, and hullmark
then says whose they are. Makers' own CAs below these roots are many, and named by the certificates that they sign: hullmark ek show tells where.`,
		Example: "  hullmark ek makers",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("ek makers", output); err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), ekcert.Known())
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintf(t, "maker\tname\tfrom\tuntil\tSHA-256\tpublished at\n")
			for _, ca := range ekcert.Known() {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", ca.Maker, ca.Name, year(ca.From), year(ca.Until), ca.Fingerprint, ca.Source)
			}
			return t.Flush()
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the table: text or json")
	return cmd
}

func year(n int) string {
	if n == 0 {
		return "?"
	}
	return fmt.Sprint(n)
}

func newEKShowCommand() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "show FILE",
		Short: "Tell what a certificate of an endorsement key, or of a maker's CA, says",
		Long: `Tell what a certificate of an endorsement key, or of a maker's CA, says, and whether it leads to a known CA.

FILE has certificates in PEM or one in DER; of an endorsement key's, the others of the file count as its chain. --ca names more that you have at hand.
Nothing is fetched, and nothing is trusted: the verdict says which file a policy could name.`,
		Example: "  hullmark ek show ek.crt --ca OptigaRsaMfrCA056.crt --ca OptigaRsaRootCA.crt",
		Args:    exactArg("ek show", "a file of certificates"),
		RunE: func(cmd *cobra.Command, args []string) error {
			atHand, err := readCertificates("--ca", files)
			if err != nil {
				return err
			}
			all, err := readCertificates("ek show", args)
			if err != nil {
				return err
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, c := range all {
				if c.IsCA {
					writeCA(t, c)
					continue
				}
				ek, err := ekcert.Parse(c.Raw)
				if err != nil {
					return err
				}
				writeEKCertificate(t, ek, append(atHand, all...))
			}
			return t.Flush()
		},
	}
	cmd.Flags().StringArrayVar(&files, "ca", nil, "`FILE` of certificates that may be of its chain; repeat for more")
	return cmd
}

// writeCA tells of a CA's certificate.
func writeCA(t io.Writer, c *x509.Certificate) {
	fmt.Fprintf(t, "CA\t%s\n", oneLine(c.Subject.String()))
	known := "no"
	if ca, ok := ekcert.Find(c); ok {
		known = "as " + ca.Maker + "'s"
	}
	fmt.Fprintf(t, "known\t%s\n", known)
	writeValidity(t, c)
	writeIssuer(t, c)
	fmt.Fprintln(t)
}

// writeEKCertificate tells of an endorsement key's certificate, and where it leads by those that are at hand.
func writeEKCertificate(t io.Writer, c *ekcert.Certificate, atHand []*x509.Certificate) {
	fmt.Fprintf(t, "TPM\t%s %s, firmware %s\n", oneLine(c.TPM.MakerName()), oneLine(c.TPM.Model), oneLine(c.TPM.Version))
	writeValidity(t, c.Certificate)
	writeIssuer(t, c.Certificate)
	fmt.Fprintf(t, "leads to\t%s\n\n", verdict(c, atHand))
}

func writeValidity(t io.Writer, c *x509.Certificate) {
	fmt.Fprintf(t, "serial\t%x\nvalid\t%s to %s\nSHA-256\t%x\n", c.SerialNumber, c.NotBefore.Format(time.DateOnly), c.NotAfter.Format(time.DateOnly), sha256.Sum256(c.Raw))
}

// writeIssuer says who signed a certificate, and where that one's certificate is said to be: for a person to fetch, not for us.
func writeIssuer(t io.Writer, c *x509.Certificate) {
	fmt.Fprintf(t, "issued by\t%s\n", oneLine(c.Issuer.String()))
	if len(c.IssuingCertificateURL) > 0 {
		fmt.Fprintf(t, "issuer's own\t%s\n", oneLine(strings.Join(c.IssuingCertificateURL, " ")))
	}
}

// verdict says in one sentence where a certificate leads, and by which flag a policy could name that.
func verdict(c *ekcert.Certificate, atHand []*x509.Certificate) string {
	if err := c.CheckUse(); err != nil {
		return "nobody: " + oneLine(err.Error())
	}
	standing := c.Judge(atHand)
	switch signed, known := standing.Signer != nil, standing.Known != nil; {
	case known && signed && isKnown(standing.Signer):
		return fmt.Sprintf("%s of %s, which signed it itself (--ek-ca)", standing.Known.Name, standing.Known.Maker)
	case known && c.Judge(nil).Known == nil && signed:
		return fmt.Sprintf("%s of %s, by certificates that the TPM does not show: name the CA that signed it (--ek-ca)", standing.Known.Name, standing.Known.Maker)
	case known:
		return fmt.Sprintf("%s of %s, by the certificates that the TPM shows (--ek-root)", standing.Known.Name, standing.Known.Maker)
	case signed:
		return oneLine(standing.Signer.Subject.String()) + ", which signed it itself (--ek-ca), and is not known"
	}
	return "nobody yet: fetch its issuer's certificate from where its maker publishes it, and name the file (--ca)"
}

func isKnown(c *x509.Certificate) bool {
	_, ok := ekcert.Find(c)
	return ok
}

// shownEK is an endorsement key as the verbs show it.
type shownEK struct {
	kind        string
	id          hullmark.EKID
	certificate []byte
	wrong       error
}

var errNoEK = errors.New("the machine shows no certificate of it")

// writeEK tells of an endorsement key.
func writeEK(t io.Writer, ek shownEK, atHand []*x509.Certificate) {
	fmt.Fprintf(t, "key\t%s\nEKID\t%s\n", ek.kind, ek.id)
	err := ek.wrong
	if len(ek.certificate) == 0 && err == nil {
		err = errNoEK
	}
	if err != nil {
		fmt.Fprintf(t, "certificate\t%s\n", oneLine(err.Error()))
	}
	if len(ek.certificate) == 0 {
		fmt.Fprintln(t)
		return
	}
	c, err := ekcert.Parse(ek.certificate)
	if err != nil {
		fmt.Fprintf(t, "certificate\tcannot be read: %s\n\n", oneLine(err.Error()))
		return
	}
	writeEKCertificate(t, c, atHand)
}
