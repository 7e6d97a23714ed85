package backup

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// Restore is what a snapshot is made to fit.
type Restore struct {
	// Policy is the cluster's of today, whose signature was checked: it decides which machines come back.
	Policy measurements.Policy
	// Authorities are the certificates of the cluster's Kubernetes CA: one, or the two of an exchange, of one of which a backup has to be.
	Authorities []*x509.Certificate
	// Now is the time of the restore; records are widened up to it.
	Now time.Time
}

// Content is what a prepared snapshot holds.
type Content struct {
	// Configuration is kubeadm's ClusterConfiguration, in YAML, as it was at the time of the backup.
	Configuration []byte
	// Flannel says whether the cluster's pod network is Hullmark's flannel.
	Flannel bool
	// Workers are the records of the machines that come back with their disks, as prepared, by their names.
	Workers []joinservice.Machine
	// GivenUp names the Nodes that do not come back, sorted.
	GivenUp []string
	// Unread says which records cannot be read; their machines do not come back.
	Unread []string
	// Revision is etcd's at the time of the backup.
	Revision int64
	// Size is the prepared snapshot's, in bytes.
	Size int64
}

// Prepare reads a backup from src, as Take wrote it, and writes to dst, which is empty and is
// opened for reading and writing, the snapshot that a new etcd is restored from: a bbolt file
// without the trailing SHA-256. It holds what the API server is to find: each object as it
// was last, but nothing of machines that do not come back with their disks, no credential to
// join, and no policy. Control planes never come back: their disks hold members of the old etcd.
// Neither file is closed. The error says what to do where another backup does not help.
func Prepare(dst, src *os.File, want Restore) (Content, error) {
	content, err := prepare(dst, src, want)
	if err != nil {
		return Content{}, fmt.Errorf("prepare the backup: %w", err)
	}
	return content, nil
}

func prepare(dst, src *os.File, want Restore) (content Content, err error) {
	if err := checkEmpty(dst); err != nil {
		return Content{}, err
	}
	if err := verify(src); err != nil {
		return Content{}, err
	}
	// bbolt trusts its pages: of a damaged file some lie outside of it, where nothing is mapped, and others make it panic.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the snapshot's pages are damaged: %v; use another backup", p)
		}
	}()
	err = read(src, func(from *database) error {
		content, err = edit(dst, from, want)
		return err
	})
	return content, err
}

// checkEmpty refuses a file that holds anything: bbolt would go on with it.
func checkEmpty(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != 0 {
		return errors.New("the file to write is not empty")
	}
	return nil
}

// verify holds a backup to the SHA-256 that it ends in.
func verify(src *os.File) error {
	check := newTrailer()
	// One more byte than is allowed is enough to see that there are too many.
	if _, err := io.Copy(check, io.NewSectionReader(src, 0, MaxSize+1)); err != nil {
		return err
	}
	if err := check.check(); err != nil {
		return fmt.Errorf("%w; use another backup", err)
	}
	return nil
}

// edit writes to dst what is kept of a snapshot.
func edit(dst *os.File, from *database, want Restore) (Content, error) {
	state, err := from.index()
	if err != nil {
		return Content{}, err
	}
	if err := checkAuthority(state, want.Authorities); err != nil {
		return Content{}, err
	}
	content := Content{Revision: state.revision}
	if content.Configuration, err = configuration(state); err != nil {
		return Content{}, err
	}
	_, content.Flannel = state.live[flannelKey]
	plan, err := newPlan(state, want)
	if err != nil {
		return Content{}, err
	}
	content.Workers, content.GivenUp, content.Unread = plan.workers, plan.givenUp, plan.unread
	content.Size, err = write(dst, func(to *bbolt.DB) error { return from.copyTo(to, state, plan) })
	return content, err
}
