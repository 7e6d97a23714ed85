package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/backup"
)

// etcdPort is where kubeadm's etcd serves clients.
const etcdPort = "2379"

// operatorValidity is how long a certificate that one call makes is good for, clocks that differ included.
const operatorValidity = time.Hour

// BackUp writes to w all that the cluster keeps in etcd, as a member that has its quorum streams it, encrypted under the file's passphrase.
// member is the HOST[:PORT] of one; empty is the control plane's endpoint. withoutQuorum takes what a member holds that has none, too.
// What w was given counts only if there is no error: a backup that no cluster could begin with today is one. The error is ErrUsage,
// ErrUnreachable or a failure.
func BackUp(ctx context.Context, file *cluster.File, member string, withoutQuorum bool, w io.Writer, progress Progress) (taken backup.Taken, err error) {
	source, err := etcdMember(file.Cluster, member)
	if err != nil {
		return taken, err
	}
	source.WithoutQuorum = withoutQuorum
	progress.say("asking the member of etcd at %s", strings.TrimPrefix(source.Endpoint, "https://"))
	plain, err := inMemory("backup")
	if err != nil {
		return taken, err
	}
	defer plain.Close()
	encrypted, err := file.Encrypt(w)
	if err != nil {
		return taken, err
	}
	if taken, err = source.Take(ctx, io.MultiWriter(encrypted, plain)); err != nil {
		if errors.Is(err, backup.ErrUnreachable) {
			err = as(ErrUnreachable, err)
		}
		return taken, err
	}
	if !taken.Quorum {
		progress.say("the member found no quorum of the %d that vote: the backup has what this one knows to be decided, and lacks what others decided without it", taken.Voters)
	}
	if err := rehearse(file.Cluster, plain, progress); err != nil {
		return taken, err
	}
	return taken, encrypted.Close()
}

// EtcdAddress returns the HOST:PORT of a member of etcd that is named without a port.
func EtcdAddress(member string) string {
	if _, _, err := net.SplitHostPort(member); err == nil {
		return member
	}
	return net.JoinHostPort(strings.Trim(member, "[]"), etcdPort)
}

// etcdMember is the member that is asked, with a certificate for this call alone.
func etcdMember(c *cluster.Cluster, member string) (backup.Source, error) {
	if member == "" {
		settings, err := c.CurrentSettings()
		if err != nil {
			return backup.Source{}, as(ErrUsage, fmt.Errorf("%w; name a member (--member)", err))
		}
		if member, _, err = net.SplitHostPort(settings.ControlPlaneEndpoint); err != nil {
			return backup.Source{}, err
		}
	}
	tls, err := c.EtcdClient(time.Now(), operatorValidity)
	return backup.Source{Endpoint: "https://" + EtcdAddress(member), TLS: tls}, err
}

// rehearse does with a backup what Init would do today, while what is wrong with it can still be mended.
func rehearse(c *cluster.Cluster, plain *os.File, progress Progress) error {
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	prepared, err := inMemory("etcd")
	if err != nil {
		return err
	}
	defer prepared.Close()
	content, err := backup.Prepare(prepared, plain, backup.Restore{Policy: policy, Authorities: c.KubernetesCAs(), Now: time.Now()})
	if err != nil {
		return fmt.Errorf("no cluster could begin with this backup, so it is not kept: %w", err)
	}
	progress.sayBackup("with it a cluster would begin anew today so: ", content, policy)
	return nil
}
