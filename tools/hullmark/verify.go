package main

import (
	"cmp"
	"crypto"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements"
)

// verifyOptions are the flags of `hullmark verify`.
type verifyOptions struct {
	builderOptions
	image, sbom, cycloneDX, provenance, document, output string
	log                                                  proofOptions
}

// verified is what hullmark verify says, as JSON or as text.
type verified struct {
	// Document is the digest that names the document.
	Document measurements.DocumentID `json:"document"`
	Image    measurements.Image      `json:"image"`
	Release  string                  `json:"release"`
	SVN      uint32                  `json:"svn"`
	Builder  string                  `json:"builder,omitempty"`
	// Key is the kind of the first key that signed, and Builders says who did and who did not, where several were asked for.
	Key      string                  `json:"key"`
	Builders *measurements.Agreement `json:"builders,omitempty"`
	// Checked is what was compared beside the signature: registers, image, SBOM, cyclonedx.
	Checked []string `json:"checked"`
	// Provenance says where the image was built, if that was checked.
	Provenance *builtBy `json:"provenance,omitempty"`
	// Log says in which log the document is, if that was checked.
	Log *loggedIn `json:"log,omitempty"`
	// registers is how many the document has; the text tells it.
	registers int
}

// builtBy is what a signed provenance says, in short.
type builtBy struct {
	Builder    string `json:"builder"`
	Invocation string `json:"invocation,omitempty"`
	Commit     string `json:"commit,omitempty"`
	Changed    bool   `json:"changed,omitempty"`
	// SignedBy is the key that signed the provenance, by its name: one is enough for it.
	SignedBy string `json:"signedBy"`
}

func newVerifyCommand() *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check a signed measurement document, offline",
		Long: `Check a signed measurement document, offline, and say what was checked.

Nothing but the file and the public key is needed. With --image the disk is compared with what was signed, with --sbom and --cyclonedx the SBOM of
materials; with --provenance a provenance that one of the keys signed has to be about the document's disk and lock. With --log-proof the document has to be in
the transparency log of --log-key, and the witnesses that are named have to have cosigned that. The document is written to --document,
for explain, export and init, only after everything was checked.

Several keys are those of builders who each made the release again: --threshold says how many of them have to have signed the same document, all if it is left out. Their
signatures are in the file, or in others (--attestation).

Exit codes: 0 all is right, 3 the image or an SBOM is another than the signed one, or the provenance or the log's proof is of another, 4 too few of the keys signed it, or
none, 1 anything else is wrong, 2 usage.`,
		Example: "  hullmark verify node.dsse --key release.pub --image node.raw --document node.json\n" +
			"  hullmark verify node.dsse --attestation bob.dsse --key alice=alice.pub --key bob=bob.pub --key carol=carol.pub --threshold 2",
		Args: exactArg("verify", "the signed document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(args[0], cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.register(cmd)
	f.StringVar(&o.image, "image", "", "also compare this disk image `FILE`")
	f.StringVar(&o.sbom, "sbom", "", "also compare this SBOM `FILE` (SPDX)")
	f.StringVar(&o.cycloneDX, "cyclonedx", "", "also compare this SBOM `FILE` (CycloneDX)")
	f.StringVar(&o.provenance, "provenance", "", "also check this signed provenance `FILE`")
	f.StringVar(&o.document, "document", "", "write the verified document to `FILE`")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	o.log.addTo(cmd)
	require(cmd, "key")
	return cmd
}

func (o *verifyOptions) run(file string, out io.Writer) error {
	if err := checkOutput("verify", o.output); err != nil {
		return err
	}
	read := slices.Concat([]string{file, o.image, o.sbom, o.cycloneDX, o.provenance, o.log.proof, o.log.key}, o.files())
	if err := notOver(o.document, read...); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	builders, keys, err := o.open("verify")
	if err != nil {
		return err
	}
	document, agreement, err := o.openAgreed(builders, file)
	if err != nil {
		return err
	}
	if !agreement.Met() {
		return withCode(exitDenied, fmt.Errorf("%s: %v", file, agreement))
	}
	checked, err := o.compare(document)
	if err != nil {
		return err
	}
	provenance, err := o.checkProvenance(document, builders, keys)
	if err != nil {
		return err
	}
	if provenance != nil {
		checked = append(checked, "provenance")
	}
	logged, err := o.log.check(file, keys, document)
	if err != nil {
		return err
	}
	if logged != nil {
		checked = append(checked, "log")
	}
	encoded, err := document.Encode()
	if err != nil {
		return err
	}
	if o.document != "" {
		if err := writeWhole(o.document, encoded, 0o644); err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	v := verified{
		Document: sha256.Sum256(encoded), Image: document.Image, Release: document.Name, SVN: document.SVN, Builder: document.Builder,
		Key:     measurements.KeyKind(keys[slices.IndexFunc(builders.Of, func(b measurements.Builder) bool { return b.Name == agreement.Signed[0] })]),
		Checked: checked, Provenance: provenance, Log: logged, registers: len(document.Registers),
	}
	if len(keys) > 1 {
		v.Builders = &agreement
	}
	return o.write(out, v)
}

// compare compares the named files with the document, and returns what was checked.
func (o *verifyOptions) compare(document measurements.Document) (checked []string, err error) {
	if o.image != "" {
		if err := compareFile(o.image, "disk", document.Image.Disk); err != nil {
			return nil, err
		}
		checked = append(checked, "image")
	}
	checked = append(checked, "registers") // when the document was opened
	if o.sbom != "" {
		if err := compareFile(o.sbom, "SBOM", document.SBOM); err != nil {
			return nil, err
		}
		checked = append(checked, "sbom")
	}
	if o.cycloneDX != "" {
		if err := compareFile(o.cycloneDX, "CycloneDX SBOM", document.CycloneDX); err != nil {
			return nil, err
		}
		checked = append(checked, "cyclonedx")
	}
	return checked, nil
}

// checkProvenance opens the named provenance, if there is one, which one of the keys signed, and holds it against the document.
func (o *verifyOptions) checkProvenance(document measurements.Document, builders measurements.Builders, keys []crypto.PublicKey) (*builtBy, error) {
	if o.provenance == "" {
		return nil, nil
	}
	signed, err := readBounded(o.provenance, measurements.MaxEnvelope)
	if err != nil {
		return nil, err
	}
	var p measurements.Provenance
	said := builtBy{}
	for i, key := range keys {
		if p, err = measurements.OpenProvenance(signed, key); err == nil {
			said.SignedBy = builders.Of[i].Name
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.provenance, err)
	}
	if err := document.CheckProvenance(p); err != nil {
		return nil, withCode(exitMismatch, fmt.Errorf("%s: %w", o.provenance, err))
	}
	said.Builder = p.Predicate.Run.Builder.ID
	if p.Predicate.Run.Metadata != nil {
		said.Invocation = p.Predicate.Run.Metadata.InvocationID
	}
	said.Commit, said.Changed = p.Commit()
	return &said, nil
}

func (o *verifyOptions) write(out io.Writer, v verified) error {
	if o.output == "json" {
		return writeJSON(out, v)
	}
	signature := fmt.Sprintf("signature   by the key in %s (%s)", o.keys[0], v.Key)
	if v.Builders != nil {
		signature = "signatures  " + v.Builders.String()
	}
	checked := []string{
		signature,
		"statement   in-toto, about the disk and the kernel image of the document",
		fmt.Sprintf("registers   %d, each replayed from its events", v.registers),
	}
	if o.image != "" {
		checked = append(checked, "image       "+o.image+" is the signed disk, byte for byte")
	}
	if o.sbom != "" {
		checked = append(checked, "packages    "+o.sbom+" is the signed SBOM, byte for byte")
	}
	if o.cycloneDX != "" {
		checked = append(checked, "packages    "+o.cycloneDX+" is the signed CycloneDX SBOM, byte for byte")
	}
	if p := v.Provenance; p != nil {
		from := "no commit"
		if p.Commit != "" {
			from = "commit " + oneLine(p.Commit)
		}
		if p.Changed {
			from += ", with changes"
		}
		by := ""
		if v.Builders != nil {
			by = "; signed by " + p.SignedBy
		}
		checked = append(checked, "provenance  of the signed disk, from "+from+", by "+oneLine(p.Builder)+by)
	}
	if v.Log != nil {
		checked = append(checked, v.Log.String())
	}
	_, err := fmt.Fprintf(out, "%s\n\nimage %s %s, release %s, security version %d, built by %s\nKubernetes %v, etcd %v\nroot hash %v\ndocument %v\n",
		strings.Join(checked, "\n"), oneLine(v.Image.ID), oneLine(v.Image.Version), oneLine(v.Release), v.SVN,
		cmp.Or(oneLine(v.Builder), "an unnamed builder"), v.Image.Kubernetes, v.Image.Etcd, v.Image.RootHash, v.Document)
	return err
}
