package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/nodump"
	"github.com/hullmark/hullmark/internal/webpage"
	"github.com/hullmark/hullmark/joinservice"
)

// maxPassphrase bounds a passphrase, in bytes.
const maxPassphrase = 1 << 10

// operatorOptions are the flags of every verb that speaks to a node.
type operatorOptions struct {
	cluster, passphraseFile string
	rootKey                 rootOptions
	node                    string
	wait                    time.Duration
}

func (o *operatorOptions) addFlags(cmd *cobra.Command, wait time.Duration) {
	f := cmd.Flags()
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	o.rootKey.addFlag(cmd)
	f.StringVar(&o.node, "node", "", "the node's `HOST[:PORT]` (port 7443 if none)")
	f.DurationVar(&o.wait, "wait", wait, "how long to keep dialling a node that is still booting")
	require(cmd, "node")
}

// clusterFlags defines the flags of every verb that opens the cluster file.
func clusterFlags(cmd *cobra.Command, cluster, passphraseFile *string) {
	cmd.Flags().StringVar(cluster, "cluster", "", "cluster `FILE`")
	cmd.Flags().StringVar(passphraseFile, "passphrase-file", "", "`FILE` whose first line is the cluster file's passphrase (default: ask)")
	require(cmd, "cluster")
}

// require marks flags that the caller has defined.
func require(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // the flag is defined by the caller
		}
	}
}

// open reads the cluster file.
func (o *operatorOptions) open(notes io.Writer) (*cluster.File, error) {
	passphrase, err := readPassphrase(o.passphraseFile, notes, "Passphrase of "+o.cluster)
	if err != nil {
		return nil, err
	}
	file, err := cluster.Open(o.cluster, passphrase)
	if err != nil {
		return nil, err
	}
	return file, o.rootKey.signFor(file)
}

// address returns the node's address with a port.
func (o *operatorOptions) address() string {
	if _, _, err := net.SplitHostPort(o.node); err == nil {
		return o.node
	}
	return net.JoinHostPort(strings.Trim(o.node, "[]"), attest.OperatorPort)
}

// checkHostPort refuses what cannot be dialled.
func checkHostPort(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q: want HOST:PORT", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("%q: want HOST:PORT, with a port from 1 to 65535", address)
	}
	return nil
}

// check refuses flags that no node can be reached with.
func (o *operatorOptions) check() error {
	if o.wait < 0 {
		return withCode(exitUsage, fmt.Errorf("--wait %v: want a time that is not negative", o.wait))
	}
	if err := checkHostPort(o.address()); err != nil {
		return withCode(exitUsage, fmt.Errorf("--node: %w", err))
	}
	return nil
}

// readPassphrase reads the first line of a file, or asks on the terminal if no file is named.
func readPassphrase(file string, notes io.Writer, prompt string) (hullmark.Secret, error) {
	if err := nodump.Process(); err != nil {
		return hullmark.Secret{}, err
	}
	if file != "" {
		return readPassphraseFile(file)
	}
	stdin := int(os.Stdin.Fd())
	if !term.IsTerminal(stdin) {
		return hullmark.Secret{}, withCode(exitUsage, errors.New("no terminal to ask for the passphrase on: name a file (--passphrase-file)"))
	}
	fmt.Fprint(notes, prompt+": ")
	typed, err := term.ReadPassword(stdin)
	fmt.Fprintln(notes)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("read the passphrase: %w", err)
	}
	return hullmark.NewSecret(typed), nil
}

func readPassphraseFile(file string) (hullmark.Secret, error) {
	f, err := os.Open(file)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("passphrase: %w", err)
	}
	defer f.Close()
	content := make([]byte, maxPassphrase+1) // Not grown while it is read: a copy would stay behind.
	n, err := io.ReadFull(f, content)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return hullmark.Secret{}, fmt.Errorf("passphrase: %w", err)
	}
	end := bytes.IndexAny(content[:n], "\r\n")
	if end < 0 {
		end = n
	}
	clear(content[end:])
	if end == 0 || end > maxPassphrase {
		return hullmark.Secret{}, fmt.Errorf("passphrase: %s: want 1 to %d bytes in the first line", file, maxPassphrase)
	}
	return hullmark.NewSecret(content[:end:end]), nil
}

// at is the node, whose progress is noted.
func (o *operatorOptions) at(notes io.Writer) operate.Node {
	return operate.Node{Address: o.address(), Wait: o.wait, Progress: lines(notes)}
}

// lines prints each line of progress, safe for a terminal.
func lines(notes io.Writer) operate.Progress {
	return func(line string) { fmt.Fprintln(notes, oneLine(line)) }
}

// printable makes text that has lines of its own safe for a terminal: of control, formatting and invisible characters line feed and
// tab are kept alone.
func printable(text string) string { return webpage.Printable(text) }

// safe is a writer of what is printable alone, for what nodes and programs say.
type safe struct{ to io.Writer }

// Write takes all of a text.
func (s safe) Write(text []byte) (int, error) {
	_, err := io.WriteString(s.to, printable(string(text)))
	return len(text), err
}

// maxLine is the length of a value that is printed, in characters.
const maxLine = 4096

// oneLine makes a value safe for a terminal that a record, a node, a file or an archive says: whoever wrote it writes no line and no
// column of what is printed about it.
func oneLine(text string) string { return webpage.Line(text, maxLine) }

// told is a condition as an error that says all of it, one line for each part.
type told struct{ condition *hullmark.Condition }

func (e told) Unwrap() error { return e.condition }

// Error lists step, cause and next action.
func (e told) Error() string {
	root := e.condition.Root()
	lines := []string{
		fmt.Sprintf("%s (%s)", oneLine(root.Title), oneLine(root.Code)),
		"  step:     " + oneLine(root.Step),
	}
	if root.Expected != "" || root.Got != "" {
		lines = append(lines, "  expected: "+oneLine(root.Expected), "  got:      "+oneLine(root.Got))
	}
	for _, title := range e.condition.Prevented() {
		lines = append(lines, "  so:       "+oneLine(title))
	}
	return strings.Join(append(lines, "  next:     "+oneLine(root.Next)), "\n")
}

// refusals are the codes by which a node denies its operator what the certificate of the call is not made for.
var refusals = []string{"call-refused", "operator-revoked", "operator-not-permitted", "operator-expired", "operator-withdrawn"}

// tell gives an error that carries a condition its full text and exit code: a
// denial, or a failure that the node reports. An error with a code of its own it leaves alone.
func tell(err error) error {
	var condition *hullmark.Condition
	if hasCode(err) || !errors.As(err, &condition) {
		return err
	}
	var reported *joinservice.NodeError
	if errors.As(err, &reported) && !slices.Contains(refusals, condition.Root().Code) {
		return withCode(exitFailed, told{condition})
	}
	return withCode(exitDenied, told{condition})
}
