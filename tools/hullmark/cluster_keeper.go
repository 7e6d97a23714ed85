package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// noKeeper stands in a URL's place for the keyset in clear.
const noKeeper = "none"

// keeperOptions are the flags of `hullmark cluster keeper set`.
type keeperOptions struct {
	operatorOptions
	secretFile, caFile string
}

func newClusterKeeperCommand() *cobra.Command {
	return group("keeper", "Choose what wraps the master keys on control planes' disks", newClusterKeeperSetCommand())
}

func newClusterKeeperSetCommand() *cobra.Command {
	var o keeperOptions
	cmd := &cobra.Command{
		Use:   "set URL|none",
		Short: "Have an external keeper wrap the master keys, or none",
		Long: `Have an external keeper wrap the master keys, or none.

The keeper wraps them now and opens them again, so that it is seen to work. Control planes that get their files from now on
hold only what it wrapped, and their join services ask it at each start. The cluster file keeps the keys themselves. In a cluster that lives this is
a rotation: push the policy, and reboot the control planes as after hullmark cluster rotate.
docs/keepers.md lists the kinds of URL: hashivault://, awskms://, gcpkms://, azurekeyvault:// and local://.`,
		Example: "  hullmark cluster keeper set 'hashivault://hullmark?address=https://vault.example:8200' --cluster prod.cluster --secret-file token",
		Args:    exactArg("cluster keeper set", "the keeper's URL, or none"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	o.rootKey.addFlag(cmd)
	f.StringVar(&o.secretFile, "secret-file", "", "`FILE` with what control planes show the keeper: Vault's token, or local's key (32 bytes in base64)")
	f.StringVar(&o.caFile, "ca-file", "", "`FILE` with the certificates (PEM) of the authority that certified a Vault (default: the system's)")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to keep asking a keeper that does not answer")
	return cmd
}

func (o *keeperOptions) run(ctx context.Context, url string, out, notes io.Writer) error {
	if o.wait <= 0 {
		return withCode(exitUsage, fmt.Errorf("--wait %v: want a time above 0", o.wait))
	}
	if url == noKeeper && o.secretFile+o.caFile != "" {
		return withCode(exitUsage, errors.New("cluster keeper set none: there is no keeper to show a secret to, or to know by its authority"))
	}
	file, err := o.open(notes)
	if err != nil {
		return err
	}
	if url == noKeeper {
		if err := file.Update((*cluster.Cluster).DropKeeper); err != nil {
			return err
		}
		return tellKeeper(out, file.Cluster, "in clear on their encrypted disks")
	}
	if err := o.set(ctx, file, url, notes); err != nil {
		return withCode(keeperExit(err), err)
	}
	return tellKeeper(out, file.Cluster, "as the keeper wrapped them")
}

// tellKeeper says how control planes hold the master keys from now on, and what brings that to those that there are.
func tellKeeper(out io.Writer, c *cluster.Cluster, how string) error {
	_, err := fmt.Fprintf(out, "control planes that get their files from now on hold the master keys %s\n", how)
	if len(c.Policy) > 0 && err == nil {
		_, err = fmt.Fprintf(out, "the policy commits to them: push it (hullmark policy push)\n%s\n", rebootNext)
	}
	return err
}

// set has the keeper wrap the keyset and records what it made of it.
func (o *keeperOptions) set(ctx context.Context, file *cluster.File, url string, notes io.Writer) error {
	credentials, err := keeper.ReadCredentialFiles(o.secretFile, o.caFile)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	return file.Update(func(c *cluster.Cluster) error {
		return c.SetKeeper(ctx, keeperAccess(credentials, notes), url, credentials.Secret, credentials.CA)
	})
}

// keeperAccess reaches a keeper, and says why it has to be asked again.
func keeperAccess(credentials keeper.Credentials, notes io.Writer) keys.Access {
	return keys.Access{Open: credentials.Open, Report: func(cause *hullmark.Condition, pause time.Duration) {
		fmt.Fprintf(notes, "%v (again in %v)\n", cause, pause.Round(time.Second/10))
	}}
}

// keeperExit is the exit code of a keeper that did not do what it was to do.
func keeperExit(err error) int {
	var c *hullmark.Condition
	if !errors.As(err, &c) {
		return exitFailed
	}
	switch c.Code {
	case keys.CodeUnreachable:
		return exitUnreachable
	case keys.CodeRefused:
		return exitDenied
	case keys.CodeSetting:
		return exitUsage
	}
	return exitFailed
}
