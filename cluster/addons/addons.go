// Package addons brings a cluster's add-ons to what its document and the release say, and back: charts, by Helm, plain manifests,
// and Hullmark's own. A plan names each object that changes. Before anything does, all CustomResourceDefinitions, all custom
// resources and every object that may change are saved on the operator's disk, encrypted under the cluster file's passphrase. What
// fails is put back as it was saved, and so is what was interrupted, by another call.
//
// Helm renders charts, runs their hooks, keeps releases and waits until objects are ready. Putting back is our own, for charts and
// manifests alike: by what was there, not by what Helm remembers of it.
package addons

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/render"
)

// What an error of this package may be, beside a failure; errors.Is tells. The error's text says what it is about.
var (
	// ErrRefused says that the cluster's state forbids it: nothing was changed.
	ErrRefused = errors.New("refused")
	// ErrUnreachable says that the API server was not reached, and nothing was changed.
	ErrUnreachable = errors.New("the API server is not reached")
)

// Options say how a cluster is reached, and where things lie.
type Options struct {
	// Config is an administrator's way to the API.
	Config *rest.Config
	// File encrypts what is saved.
	File *cluster.File
	// Saved is the folder of what is saved; it is made with the first.
	Saved string
	// Folder is where names of files count from that are not absolute: the document's.
	Folder string
	// Network is what the cluster document says of the cluster's networks; nil without one.
	Network *render.Network
	// Credential returns what to log in to a registry with, if it wants it; it may be nil.
	Credential auth.CredentialFunc
	// Wait is how long an API server that does not answer is asked again before anything is changed.
	Wait time.Duration
	// Timeout bounds each wait for an add-on to get ready, for a hook to end, and for what is put back to be taken.
	Timeout time.Duration
	// Migrate lets objects be written anew in a version that their next definition has, too.
	Migrate bool
	// Progress hears of what takes its time, Done of each change that was made. They may be nil.
	Progress, Done func(line string)
}

// Addons are those of one cluster. Its methods are what can be done with them, one at a time.
type Addons struct {
	Options
	// settle is how long other API servers may take to take a changed definition up: until then they may store objects in the
	// version of before.
	settle time.Duration
}

// New returns the add-ons of a cluster; it asks nothing yet.
func New(o Options) *Addons { return &Addons{o, 5 * time.Second} }

func (o *Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

func (o *Options) done(format string, args ...any) {
	if o.Done != nil {
		o.Done(fmt.Sprintf(format, args...))
	}
}
