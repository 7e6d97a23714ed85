package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/backup"
)

// etcdPort is where kubeadm's etcd serves clients.
const etcdPort = "2379"

func newEtcdCommand() *cobra.Command {
	return group("etcd", "Back up what a cluster keeps in etcd", newEtcdBackupCommand())
}

// etcdBackupOptions are the flags of `hullmark etcd backup`.
type etcdBackupOptions struct {
	cluster, passphraseFile string
	member                  string
}

func newEtcdBackupCommand() *cobra.Command {
	var o etcdBackupOptions
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write all that the cluster keeps in etcd to a file, encrypted",
		Long: `Write all that the cluster keeps in etcd to a file, encrypted under the cluster file's passphrase.

It is etcd's own snapshot, by a member that has its quorum: every object of the Kubernetes API, Secrets too, and the machines' records. If all
control planes are lost, init --new-disk --etcd-backup begins the cluster anew with it. Keep it with a copy of the cluster file. The file is never overwritten.`,
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
	return cmd
}

func (o *etcdBackupOptions) run(ctx context.Context, path string, out, notes io.Writer) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already, and is not overwritten; name another file", path)
	}
	operator := operatorOptions{cluster: o.cluster, passphraseFile: o.passphraseFile}
	file, err := operator.open(notes)
	if err != nil {
		return err
	}
	source, err := o.source(file.Cluster)
	if err != nil {
		return err
	}
	fmt.Fprintf(notes, "asking the member of etcd at %s\n", strings.TrimPrefix(source.Endpoint, "https://"))
	plain, err := inMemory("backup")
	if err != nil {
		return err
	}
	defer plain.Close()
	taken, err := writeBackup(ctx, file, source, plain, path, notes)
	if errors.Is(err, backup.ErrUnreachable) {
		return withCode(exitUnreachable, err)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s holds revision %d of etcd, %d KiB, under the passphrase of %s\n", path, taken.Revision, taken.Size>>10, o.cluster)
	return err
}

// rehearse does with a backup what init would do today, while what is wrong with it can still be mended.
func rehearse(c *cluster.Cluster, plain *os.File, notes io.Writer) error {
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	prepared, err := inMemory("etcd")
	if err != nil {
		return err
	}
	defer prepared.Close()
	content, err := backup.Prepare(prepared, plain, backup.Restore{Policy: policy, Authority: c.Kubernetes.Certificate, Now: time.Now()})
	if err != nil {
		return fmt.Errorf("no cluster could begin with this backup, so it is not kept: %w", err)
	}
	fmt.Fprint(notes, "with it a cluster would begin anew today so: ")
	tellBackup(notes, content, policy)
	return nil
}

// source is the member that is asked, with a certificate for this command alone.
func (o *etcdBackupOptions) source(c *cluster.Cluster) (backup.Source, error) {
	address := o.member
	if address == "" {
		settings, err := c.CurrentSettings()
		if err != nil {
			return backup.Source{}, withCode(exitUsage, fmt.Errorf("%w; name a member (--member)", err))
		}
		if address, _, err = net.SplitHostPort(settings.ControlPlaneEndpoint); err != nil {
			return backup.Source{}, err
		}
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), etcdPort)
	}
	if err := checkHostPort(address); err != nil {
		return backup.Source{}, withCode(exitUsage, fmt.Errorf("--member: %w", err))
	}
	tls, err := c.EtcdClient(time.Now(), apiValidity)
	return backup.Source{Endpoint: "https://" + address, TLS: tls}, err
}

// writeBackup writes a file that has its name only when it is whole and stored.
func writeBackup(ctx context.Context, file *cluster.File, source backup.Source, plain *os.File, path string, notes io.Writer) (taken backup.Taken, err error) {
	err = create(path, 0o600, func(f *os.File) error {
		taken, err = encryptBackup(ctx, file, source, plain, f, notes)
		return err
	})
	return taken, err
}

// encryptBackup takes the backup, to memory too, and rehearses it.
func encryptBackup(ctx context.Context, file *cluster.File, source backup.Source, plain, f *os.File, notes io.Writer) (taken backup.Taken, err error) {
	w, err := file.Encrypt(f)
	if err != nil {
		return taken, err
	}
	if taken, err = source.Take(ctx, io.MultiWriter(w, plain)); err != nil {
		return taken, err
	}
	if err := rehearse(file.Cluster, plain, notes); err != nil {
		return taken, err
	}
	return taken, w.Close()
}
