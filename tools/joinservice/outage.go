package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// recoveredCredential names the boot in which this node's own disk was opened by `hullmark recover`; neverRecovered is its content in all others.
const recoveredCredential, neverRecovered = "recovered", "no"

// outage is the time from `hullmark recover` on this node to the first record that was read: until then other control planes may come back unchecked.
// A restart of the service does not begin it anew.
type outage struct {
	// boot names the boot, empty in one without recover; path is the file that names the one whose outage is over.
	boot, path string
	log        *slog.Logger

	mutex sync.Mutex
	over  bool
}

func newOutage(f folder, state string, log *slog.Logger) (*outage, error) {
	boot, err := f.read(recoveredCredential)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o := &outage{boot: string(boot), path: filepath.Join(state, "outage-over"), log: log}
	if o.boot == neverRecovered {
		o.boot = ""
	}
	if o.boot == "" {
		o.over = true
		return o, nil
	}
	ended, err := os.ReadFile(o.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o.over = string(ended) == o.boot
	return o, nil
}

// lasts reports whether control planes may come back unchecked.
func (o *outage) lasts() bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return !o.over
}

// end notes that a record was read.
func (o *outage) end() {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.over {
		return
	}
	o.over = true
	o.log.Info("the cluster's records can be read: from now on every control plane is checked against its own")
	if err := os.WriteFile(o.path, []byte(o.boot), 0o600); err != nil {
		o.log.Warn("a restart of the service would not know that the outage is over", "error", err.Error())
	}
}

// attentive are records that end the outage when one was read.
type attentive struct {
	joinservice.Records
	outage *outage
}

func (a attentive) Load(ctx context.Context, node hullmark.NodeID) (joinservice.Machine, joinservice.Version, error) {
	m, v, err := a.Records.Load(ctx, node)
	if err == nil {
		a.outage.end()
	}
	return m, v, err
}
