package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster/backup"
	"github.com/hullmark/hullmark/cluster/operate"
)

func newEtcdCommand() *cobra.Command {
	return group("etcd", "Back up what a cluster keeps in etcd", newEtcdBackupCommand())
}

// etcdBackupOptions are the flags of `hullmark etcd backup`.
type etcdBackupOptions struct {
	cluster, passphraseFile string
	member                  string
	withoutQuorum           bool
}

func newEtcdBackupCommand() *cobra.Command {
	var o etcdBackupOptions
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write all that the cluster keeps in etcd to a file, encrypted",
		Long: `Write all that the cluster keeps in etcd to a file, encrypted under the cluster file's passphrase.

It is etcd's own snapshot, by a member that has its quorum: every object of the Kubernetes API, Secrets too, and the machines' records. If all
control planes are lost, init --new-disk --etcd-backup begins the cluster anew with it. Keep it with a copy of the cluster file. The file is never overwritten.

With --without-quorum a member is enough that runs alone, because the others are lost for good.`,
		Example: "  hullmark etcd backup prod-monday.backup --cluster prod.cluster",
		Args:    exactArg("etcd backup", "the file to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("etcd backup: %w", err)
			}
			return nil
		},
	}
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	cmd.Flags().StringVar(&o.member, "member", "", "`HOST[:PORT]` of a member of etcd (default: the control plane's endpoint, port 2379)")
	cmd.Flags().BoolVar(&o.withoutQuorum, "without-quorum", false, "take what the member holds although too few of the others run; what they decided without it is missing")
	return cmd
}

func (o *etcdBackupOptions) run(ctx context.Context, path string, out, notes io.Writer) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already, and is not overwritten; name another file", path)
	}
	if o.member != "" {
		if err := checkHostPort(operate.EtcdAddress(o.member)); err != nil {
			return withCode(exitUsage, fmt.Errorf("--member: %w", err))
		}
	}
	operator := operatorOptions{cluster: o.cluster, passphraseFile: o.passphraseFile}
	file, err := operator.open(notes)
	if err != nil {
		return err
	}
	var taken backup.Taken
	err = create(path, 0o600, func(f *os.File) error {
		taken, err = operate.BackUp(ctx, file, o.member, o.withoutQuorum, f, lines(notes))
		return err
	})
	if err != nil {
		return err
	}
	quorum := ""
	if !taken.Quorum {
		quorum = " as a member without a quorum knew it"
	}
	_, err = fmt.Fprintf(out, "%s holds revision %d of etcd%s, %d KiB, under the passphrase of %s\n", path, taken.Revision, quorum, taken.Size>>10, o.cluster)
	return err
}
