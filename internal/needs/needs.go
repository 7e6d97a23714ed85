// Package needs lists what the verbs of hullmark need of the machine that they run on, beside the program itself, and looks whether it is
// there. Looking changes nothing, asks no network, and needs no rights.
package needs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/internal/cache"
)

// Need is one thing that verbs need of a machine.
type Need struct {
	// What is its name: that of a program, the path of a file, or words.
	What string
	// For says which verbs need it.
	For []Use
	// Packages are the Debian packages that bring it.
	Packages []string
	// Remedy is what else there is to do, where no package brings it or brings it alone.
	Remedy string

	look look
}

// Use is that a verb needs something.
type Use struct {
	// Verb is the first word of a command of hullmark.
	Verb string
	// When says for which part of what the verb does; empty where it does nothing without.
	When string
}

// look looks for a thing, and notes where or how much of it is there. The error is fs.ErrNotExist or exec.ErrNotFound where it is not
// there; any other says why it is of no use.
type look func(context.Context, Machine) (note string, err error)

// Machine is where something is looked for, beside the folders of PATH.
type Machine struct {
	// Root is the folder that absolute paths begin in; empty is the machine's own root.
	Root string
	// Work is the working folder, and Cache the one of internal/cache, which may not exist.
	Work, Cache string
	// Arch is the processor's kind as GOARCH spells it.
	Arch string
	// User is the user ID; root needs less.
	User int
}

// This is the machine that the program runs on.
func This() (Machine, error) {
	work, err := os.Getwd()
	if err != nil {
		return Machine{}, fmt.Errorf("look at this machine: %w", err)
	}
	kept, err := cache.Dir()
	if err != nil {
		return Machine{}, fmt.Errorf("look at this machine: %w", err)
	}
	return Machine{Work: work, Cache: kept, Arch: runtime.GOARCH, User: os.Geteuid()}, nil
}

// path is where the machine has what is at an absolute path.
func (m Machine) path(of string) string { return filepath.Join("/", m.Root, of) }

// State is what was found of a thing.
type State string

// A thing is there, or is not, or is there and of no use as it is.
const (
	Found   State = "found"
	Missing State = "missing"
	Wrong   State = "wrong"
)

// Finding is what was found of a thing that a verb needs.
type Finding struct {
	Verb string `json:"verb"`
	What string `json:"what"`
	// When is what the verb needs it for; empty where it does nothing without.
	When  string `json:"when,omitempty"`
	State State  `json:"state"`
	// Note is where it is or how much there is of it, or why it is of no use.
	Note string `json:"note,omitempty"`
	// Remedy is what to do, and Packages are what to install; both are empty where it was found.
	Remedy   string   `json:"remedy,omitempty"`
	Packages []string `json:"packages,omitempty"`
}

// Stops tells whether the verb cannot do its work because of it.
func (f Finding) Stops() bool { return f.State != Found && f.When == "" }

// Verbs are those that need anything, in the order of the table.
func Verbs() []string {
	var all []string
	for _, n := range table {
		for _, u := range n.For {
			if !slices.Contains(all, u.Verb) {
				all = append(all, u.Verb)
			}
		}
	}
	return all
}

// Look looks once for all that the given verbs need, and returns what it found for each verb in turn.
func Look(ctx context.Context, m Machine, verbs []string) []Finding {
	looked := map[string]Finding{}
	var all []Finding
	for _, verb := range verbs {
		for _, n := range table {
			i := slices.IndexFunc(n.For, func(u Use) bool { return u.Verb == verb })
			if i < 0 {
				continue
			}
			f, known := looked[n.What]
			if !known {
				f = n.find(ctx, m)
				looked[n.What] = f
			}
			f.Verb, f.When = verb, n.For[i].When
			all = append(all, f)
		}
	}
	return all
}

func (n Need) find(ctx context.Context, m Machine) Finding {
	note, err := n.look(ctx, m)
	f := Finding{What: n.What, State: Found, Note: note}
	if err == nil {
		return f
	}
	if f.State = Wrong; errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		f.State = Missing
	}
	f.Note, f.Remedy = err.Error(), n.Remedy
	if len(n.Packages) == 0 || f.State == Wrong && n.Remedy != "" { // A package that is there, and is of no use, does not help.
		return f
	}
	f.Packages = n.Packages
	install := "apt-get install " + strings.Join(n.Packages, " ")
	if f.Remedy != "" {
		install += "; " + f.Remedy
	}
	f.Remedy = install
	return f
}
