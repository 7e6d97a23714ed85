package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/backup"
)

// restoration is what etcd begins with, prepared from a backup. It is only ever in memory.
type restoration struct {
	file      *os.File
	announced *wire.Snapshot
}

// readBackup decrypts and prepares the backup that is named, if one is.
func (r *initRun) readBackup() error {
	if r.options.etcdBackup == "" {
		return nil
	}
	if err := r.prepareBackup(); err != nil {
		return fmt.Errorf("--etcd-backup %s: %w", r.options.etcdBackup, err)
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
	content, err := backup.Prepare(prepared, source, backup.Restore{Policy: r.desk.Policy, Authority: r.file.Cluster.Kubernetes.Certificate, Now: now})
	if err != nil {
		return errors.Join(err, prepared.Close())
	}
	if err := r.fits(content.Configuration); err != nil {
		return errors.Join(err, prepared.Close())
	}
	r.tellBackup(content)
	sum, size, err := announcedOf(prepared)
	r.restoration = &restoration{file: prepared, announced: &wire.Snapshot{Size: size, Sha256: sum, Backup: digest, Bump: bump(now)}}
	return err
}

// bump is by how much revisions rise above the backup's: with the time, so that they do from one restoration to any later one, as long as no etcd makes
// ten thousand of them in a second.
func bump(now time.Time) uint64 { return uint64(now.Unix()) * 10_000 }

// decryptBackup returns the backup's content, in memory, and its SHA-256.
func (r *initRun) decryptBackup() (*os.File, []byte, error) {
	encrypted, err := os.Open(r.options.etcdBackup)
	if err != nil {
		return nil, nil, err
	}
	defer encrypted.Close()
	plain, err := r.file.Decrypt(encrypted)
	if err != nil {
		return nil, nil, err
	}
	f, err := inMemory("backup")
	if err != nil {
		return nil, nil, err
	}
	digest := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, digest), io.LimitReader(plain, backup.MaxSize+1))
	if err == nil && n > backup.MaxSize {
		err = fmt.Errorf("it has more than %d bytes", int64(backup.MaxSize))
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, digest.Sum(nil), nil
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

// tellBackup says what comes back.
func (r *initRun) tellBackup(content backup.Content) {
	var workers []string
	for _, m := range content.Workers {
		workers = append(workers, m.Name)
	}
	list := func(names []string) string { return cmp.Or(strings.Join(names, ", "), "none") }
	fmt.Fprintf(r.notes, "the backup holds revision %d of etcd; workers that come back: %s; nodes that are given up: %s\n",
		content.Revision, list(workers), printable(list(content.GivenUp)))
}

// frame is what of a ClusterConfiguration cannot change while a cluster keeps its content.
type frame struct {
	Kind              string `json:"kind"`
	KubernetesVersion string `json:"kubernetesVersion"`
	Networking        struct {
		ServiceSubnet string `json:"serviceSubnet"`
		PodSubnet     string `json:"podSubnet"`
		DNSDomain     string `json:"dnsDomain"`
	} `json:"networking"`
}

// documentStart is the line between two documents of a YAML stream.
var documentStart = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?$`)

// frameOf finds a ClusterConfiguration in a YAML stream and reads it with kubeadm's defaults.
func frameOf(stream []byte) (frame, error) {
	for _, document := range documentStart.Split(string(stream), -1) {
		var f frame
		if err := yaml.Unmarshal([]byte(document), &f); err != nil {
			return f, err
		}
		if f.Kind == "ClusterConfiguration" {
			f.KubernetesVersion = cmp.Or(f.KubernetesVersion, kubeadm.Version)
			f.Networking.ServiceSubnet = cmp.Or(f.Networking.ServiceSubnet, "10.96.0.0/12")
			f.Networking.DNSDomain = cmp.Or(f.Networking.DNSDomain, "cluster.local")
			return f, nil
		}
	}
	return frame{}, errors.New("there is no ClusterConfiguration")
}

// fits refuses a backup of which this init would make a cluster that does not work.
func (r *initRun) fits(configuration []byte) error {
	documents, _, err := r.options.documents.make(r.options.documents.example())
	if err != nil {
		return err
	}
	ours, err := frameOf(documents)
	if err != nil {
		return fmt.Errorf("kubeadm documents: %w", err)
	}
	theirs, err := frameOf(bytes.TrimSpace(configuration))
	if err != nil {
		return fmt.Errorf("the backup's kubeadm-config: %w", err)
	}
	return ours.continues(theirs)
}

// continues refuses another network than the backup's Services and Pods have addresses of, and a Kubernetes that does not read what the backup's wrote.
func (f frame) continues(backup frame) error {
	for _, part := range []struct{ what, flag, ours, theirs string }{
		{"pod network", "--pod-subnet", f.Networking.PodSubnet, backup.Networking.PodSubnet},
		{"service network", "--service-subnet", f.Networking.ServiceSubnet, backup.Networking.ServiceSubnet},
		{"DNS domain", "--kubeadm", f.Networking.DNSDomain, backup.Networking.DNSDomain},
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

// announce adds the backup to M6, unless the node's disk holds a cluster already.
func (r *initRun) announce(proceed *wire.Proceed, opened joinservice.Opened) error {
	if r.restoration == nil {
		return nil
	}
	if opened.Joined {
		return &hullmark.Condition{
			Code: "disk-not-blank", Step: "EPOCH", Title: "a backup begins a cluster anew, but this disk holds a control plane that was Ready",
			Next: "give the node an empty disk (--new-disk), or run init without the backup to let it come back as it is",
		}
	}
	proceed.Snapshot = r.restoration.announced
	return nil
}

// sendBackup sends what M6 announced.
func (r *initRun) sendBackup(conversation *joinservice.Conversation) error {
	if r.restoration == nil {
		return nil
	}
	return conversation.Snapshot(io.NewSectionReader(r.restoration.file, 0, int64(r.restoration.announced.GetSize())))
}
