package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
)

// operatorLife is how long an operator's certificates last unless --valid says otherwise, as an administrator's kubeconfig does.
const operatorLife = 365 * 24 * time.Hour

func newOperatorCommand() *cobra.Command {
	cmd := group("operator", "Let others do some of what the cluster file does", newOperatorNewCommand(), newOperatorListCommand(), newOperatorWithdrawCommand())
	cmd.Long = `Let others do some of what the cluster file does.

Each operator has a file of his own, under a passphrase of his own, that is named in the place of the cluster file (--cluster alice.operator). It has no key of the
cluster's root. What he may is in the signed policy: look (node status, node logs, node list, report); recover, and change, which include look. Without operators all of it is done by the
cluster file, which does everything in any case.`
	return cmd
}

// operatorNewOptions are the flags of `hullmark operator new`.
type operatorNewOptions struct {
	apiOptions
	may, out, operatorPassphraseFile string
	valid                            time.Duration
	replace                          bool
}

func newOperatorNewCommand() *cobra.Command {
	var o operatorNewOptions
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Name an operator in the policy, and make his file",
		Long: `Name an operator in the policy, and make his file.

The file has a key of his own, a certificate for it that the root signed, and the policy with its documents. Of one who may look it has another certificate, for the Kubernetes API,
by which he reads records and nothing else. One who may change the policy accepts and withdraws releases and workers (policy add, policy remove, policy minimum-svn, policy push), and signs
that by his own key. Of one who may recover it has the keys of the control planes' disks as they are now: with a copy of such a disk he has all that is on it. Of
several control planes the API says which disks they have.

He is an operator once the policy is in the cluster (hullmark policy push). --replace gives one who is there another key and file, with these permissions; whoever has the earlier
file is withdrawn then.`,
		Example: "  hullmark operator new alice --may look --cluster prod.cluster\n  hullmark operator new bob --may recover --cluster prod.cluster --out bob.operator",
		Args:    exactArg("operator new", "the operator's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.run(cmd, args[0]); err != nil {
				return fmt.Errorf("operator new: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.may, "may", "", "`PERMISSIONS` with commas between them: look, change or recover, which both include look")
	f.StringVar(&o.out, "out", "", "the `FILE` to make (default: NAME.operator)")
	f.StringVar(&o.operatorPassphraseFile, "operator-passphrase-file", "", "`FILE` whose first line is the passphrase of the file to make (default: ask twice)")
	f.DurationVar(&o.valid, "valid", operatorLife, "how long his certificates last")
	f.BoolVar(&o.replace, "replace", false, "give an operator who is there another key and file, and these permissions")
	require(cmd, "may")
	return cmd
}

// granting is what the flags ask for.
func (o *operatorNewOptions) granting(name string) (g cluster.Granting, err error) {
	if !hullmark.ValidOperatorName(name) {
		return g, withCode(exitUsage, fmt.Errorf("name %q: want at most 32 lower-case letters, digits and hyphens, and not root", name))
	}
	words := strings.Split(o.may, ",")
	if look := string(hullmark.MayLook); o.may != "" && !slices.Contains(words, look) {
		words = append(words, look) // It comes with every other.
	}
	slices.Sort(words) // In whatever order they are named.
	may, err := hullmark.ParsePermissions(strings.Join(words, ","))
	if err != nil {
		return g, withCode(exitUsage, fmt.Errorf("--may: %w", err))
	}
	if o.valid < time.Minute {
		return g, withCode(exitUsage, fmt.Errorf("--valid %v: want a minute at least", o.valid))
	}
	return cluster.Granting{Name: name, May: may, Ends: time.Now().Add(o.valid), Replace: o.replace}, nil
}

func (o *operatorNewOptions) run(cmd *cobra.Command, name string) error {
	g, err := o.granting(name)
	if err != nil {
		return err
	}
	path := o.out
	if path == "" {
		path = name + ".operator"
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already; an operator's file is never overwritten", path)
	}
	notes := cmd.ErrOrStderr()
	passphrase, err := newPassphrase(o.operatorPassphraseFile, notes)
	if err != nil {
		return err
	}
	file, _, err := o.open(notes)
	if err != nil {
		return err
	}
	grant, err := operate.GrantOperator(cmd.Context(), file, g, operate.APIOptions{Server: o.server, Wait: o.wait, Progress: lines(notes)})
	if err != nil {
		return err
	}
	if err := cluster.CreateOperatorFile(path, passphrase, grant, cluster.WorkFactor); err != nil {
		return fmt.Errorf("%w; the policy names the operator, so make the file anew (--replace)", err)
	}
	said := fmt.Sprintf("operator %s may %s until %s, by the file %s", name, hullmark.FormatPermissions(g.May), g.Ends.UTC().Format(time.DateOnly), path)
	return o.tellChange(cmd.OutOrStdout(), file.Cluster, said)
}
