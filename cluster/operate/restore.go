package operate

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster/backup"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// restoration is what etcd begins with, prepared from a backup. It is in memory alone, and in swap where there is any.
type restoration struct {
	file      *os.File
	announced *wire.Snapshot
}

// readBackup decrypts and prepares the backup that is named, if one is.
func (r *initRun) readBackup() error {
	if r.options.Backup == nil {
		return nil
	}
	if err := r.prepareBackup(); err != nil {
		return fmt.Errorf("--etcd-backup %s: %w", r.options.Backup.Name(), err)
	}
	return nil
}

func (r *initRun) prepareBackup() error {
	source, digest, err := r.decryptBackup()
	if err != nil {
		return err
	}
	defer source.Close()
	prepared, err := inMemory("etcd")
	if err != nil {
		return err
	}
	now := time.Now()
	content, err := backup.Prepare(prepared, source, backup.Restore{Policy: r.authorizer.Policy, Authorities: r.file.Cluster.KubernetesCAs(), Now: now})
	if err == nil {
		err = r.fits(content)
	}
	if err != nil {
		return errors.Join(err, prepared.Close())
	}
	r.Progress.sayBackup("", content, r.authorizer.Policy)
	sum, size, err := announcedOf(prepared)
	if err != nil {
		return errors.Join(err, prepared.Close())
	}
	r.restoration = &restoration{file: prepared, announced: &wire.Snapshot{Size: size, Sha256: sum, Backup: digest, Bump: bump(content.Revision, now)}}
	return nil
}

// bump is by how much revisions rise above the backup's: to ten thousand for each second of Unix time, so that they rise from each
// restoration to every later one, of whichever backup, as long as no etcd makes more of them.
func bump(revision int64, now time.Time) uint64 {
	const least = 1_000_000 // where a clock was ahead
	return uint64(max(now.Unix()*10_000-revision, least))
}

// decryptBackup returns the backup's content, in memory, and its SHA-256.
func (r *initRun) decryptBackup() (*os.File, []byte, error) {
	plain, err := r.file.Decrypt(r.options.Backup)
	if err != nil {
		return nil, nil, unopened(err)
	}
	f, err := inMemory("backup")
	if err != nil {
		return nil, nil, err
	}
	digest := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, digest), io.LimitReader(opened{plain}, backup.MaxSize+1))
	if err == nil && n > backup.MaxSize {
		err = fmt.Errorf("it has more than %d bytes, which no backup has", int64(backup.MaxSize))
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, digest.Sum(nil), nil
}

// unopened says of a backup that does not decrypt what may be wrong with it.
func unopened(err error) error {
	return fmt.Errorf("it is no backup under the cluster file's passphrase, or it is damaged: %w; use a whole backup, with the cluster file of the same cluster", err)
}

// opened is what a backup decrypts to. It tells errors of the backup from those of what is made of it.
type opened struct{ from io.Reader }

// Read reads on.
func (o opened) Read(p []byte) (n int, err error) {
	if n, err = o.from.Read(p); err != nil && !errors.Is(err, io.EOF) {
		err = unopened(err)
	}
	return n, err
}

// inMemory makes a file that is on no disk (memfd_create(2)).
func inMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func announcedOf(f *os.File) (sum []byte, size uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	digest := sha256.New()
	_, err = io.Copy(digest, io.NewSectionReader(f, 0, info.Size()))
	return digest.Sum(nil), uint64(info.Size()), err
}

// sayBackup says who comes back, and who would need an empty disk.
func (p Progress) sayBackup(when string, content backup.Content, policy measurements.Policy) {
	var workers, lost []string
	for _, m := range content.Workers {
		workers = append(workers, m.Name)
	}
	for _, m := range policy.Members {
		if m.Role == hullmark.Worker && !slices.Contains(workers, m.Name) {
			lost = append(lost, m.Name)
		}
	}
	list := func(names []string) string { return cmp.Or(strings.Join(names, ", "), "none") }
	p.say("%sthe backup holds revision %d of etcd; workers that come back: %s; nodes that are given up: %s",
		when, content.Revision, list(workers), list(content.GivenUp))
	if len(lost) > 0 {
		p.say("workers whose disks it does not know, or whose disks were reset since; they need empty ones, and what is on theirs is lost: %s", list(lost))
	}
	for _, text := range content.Unread {
		p.say("a record cannot be read, and its machine does not come back: %s", text)
	}
}

// frame is what of a ClusterConfiguration cannot change while a cluster keeps its content.
type frame struct {
	KubernetesVersion    string `json:"kubernetesVersion"`
	ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
	Networking           struct {
		ServiceSubnet string `json:"serviceSubnet"`
		PodSubnet     string `json:"podSubnet"`
		DNSDomain     string `json:"dnsDomain"`
	} `json:"networking"`
}

// frameOf reads a ClusterConfiguration out of a YAML stream, with kubeadm's defaults.
func frameOf(stream []byte) (f frame, err error) {
	if err := kubeadm.Find(stream, "ClusterConfiguration", &f); err != nil {
		return f, err
	}
	f.KubernetesVersion = cmp.Or(f.KubernetesVersion, kubeadm.Version)
	f.Networking.ServiceSubnet = cmp.Or(f.Networking.ServiceSubnet, "10.96.0.0/12")
	f.Networking.DNSDomain = cmp.Or(f.Networking.DNSDomain, "cluster.local")
	return f, nil
}

// networks are those of the services and of the pods, of each family.
func (f frame) networks() ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for _, text := range strings.FieldsFunc(f.Networking.ServiceSubnet+","+f.Networking.PodSubnet, func(r rune) bool { return r == ',' }) {
		network, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("networking: %w", err)
		}
		networks = append(networks, network.Masked())
	}
	return networks, nil
}

// keepSettings makes the endpoint and the profile that are in force this init's, unless the operator names others, and keeps the endpoint's
// names: workers find the control plane by it.
func (r *initRun) keepSettings() error {
	if r.options.Backup == nil || r.file.Cluster.Settings == nil {
		return nil
	}
	current, err := r.file.Cluster.CurrentSettings()
	if err != nil {
		return err
	}
	d := &r.options.Kubernetes
	d.names, d.ControlPlane, d.Profile = current.Names, cmp.Or(d.ControlPlane, current.ControlPlaneEndpoint), cmp.Or(d.Profile, current.Profile)
	if d.Kubeadm == nil {
		return nil
	}
	f, err := frameOf(d.Kubeadm)
	if err == nil && f.ControlPlaneEndpoint != "" && f.ControlPlaneEndpoint != d.ControlPlane {
		err = as(ErrUsage, fmt.Errorf("--etcd-backup: the kubeadm documents have the controlPlaneEndpoint %q, and the cluster's nodes look for %s; write that, or name the new one, too (--control-plane)", f.ControlPlaneEndpoint, d.ControlPlane))
	}
	return err
}

// moveEndpoint puts another endpoint than the one in force into the policy, as hullmark endpoint set would if there were an API: nodes that
// come back are told it.
func (r *initRun) moveEndpoint(policy measurements.Policy) measurements.Policy {
	if r.options.Backup == nil || r.file.Cluster.Settings == nil {
		return policy
	}
	current := r.file.Cluster.Settings.Under(policy)
	if current.ControlPlaneEndpoint == r.options.Kubernetes.ControlPlane {
		return policy
	}
	r.Progress.say("the endpoint moves from %s to %s", current.ControlPlaneEndpoint, r.options.Kubernetes.ControlPlane)
	policy.Endpoint = &measurements.Endpoint{Address: r.options.Kubernetes.ControlPlane, Names: current.Names}
	return policy
}

// fits refuses a backup of which this init would make a cluster that does not work.
func (r *initRun) fits(content backup.Content) error {
	if r.options.Kubernetes.Flannel && !content.Flannel {
		return errors.New("the cluster has a pod network of its own, and this init would bring flannel beside it; say that it brings none (--network none): its own comes back with the backup")
	}
	example, err := r.options.Kubernetes.example()
	if err != nil {
		return err
	}
	documents, _, err := r.options.Kubernetes.make(example)
	if err != nil {
		return err
	}
	if err := (kubeadm.Restoration{Documents: documents, NodeName: r.options.Name}).Check(); err != nil {
		return err
	}
	ours, err := frameOf(documents)
	if err != nil {
		return err
	}
	theirs, err := frameOf(content.Configuration)
	if err != nil {
		return fmt.Errorf("the backup's kubeadm-config: %w", err)
	}
	return ours.continues(theirs)
}

// continues refuses another network than the backup's Services and Pods have addresses of, and a Kubernetes that does not read what the
// backup's wrote.
func (f frame) continues(backup frame) error {
	for _, part := range []struct{ what, flag, ours, theirs string }{
		{"pod network", "--pod-subnet, or in your own documents", f.Networking.PodSubnet, backup.Networking.PodSubnet},
		{"service network", "--service-subnet, or in your own documents", f.Networking.ServiceSubnet, backup.Networking.ServiceSubnet},
		{"DNS domain", "in documents of your own, --kubeadm", f.Networking.DNSDomain, backup.Networking.DNSDomain},
	} {
		if part.ours != part.theirs {
			return fmt.Errorf("the cluster's %s was %q, and this init says %q; give the same (%s)", part.what, part.theirs, part.ours, part.flag)
		}
	}
	then, err := version.ParseSemantic(backup.KubernetesVersion)
	if err != nil {
		return fmt.Errorf("the backup's Kubernetes version %q: %w", backup.KubernetesVersion, err)
	}
	now, err := version.ParseSemantic(f.KubernetesVersion)
	if err != nil {
		return fmt.Errorf("this init's Kubernetes version %q: %w", f.KubernetesVersion, err)
	}
	if step := int(now.Minor()) - int(then.Minor()); now.Major() != then.Major() || step < 0 || step > 1 {
		return fmt.Errorf("the cluster ran Kubernetes %s, and this image brings %s: want the same minor version or the next; take an image of such a release", then, now)
	}
	return nil
}

// announce adds the backup to Proceed, unless the node's disk holds a cluster already.
func (r *initRun) announce(proceed *wire.Proceed, opened joinservice.Opened) error {
	if r.restoration == nil {
		return nil
	}
	if opened.Joined {
		return &hullmark.Condition{
			Code: "disk-not-blank", Step: "EPOCH", Title: "a backup begins a cluster anew, but this disk holds a control plane that was Ready",
			Next: "run init without the backup, and the node comes back as it is; or give it an empty disk (--new-disk), and begin anew",
		}
	}
	proceed.Snapshot = r.restoration.announced
	return nil
}

// sendBackup sends what Proceed announced while the node tells what it does: a node that falls silent ends both.
func (r *initRun) sendBackup(conversation *joinservice.Conversation) (sent <-chan error) {
	result := make(chan error, 1)
	if r.restoration == nil {
		result <- nil
		return result
	}
	content := io.NewSectionReader(r.restoration.file, 0, int64(r.restoration.announced.GetSize()))
	go func() { result <- conversation.Snapshot(content) }()
	return result
}
