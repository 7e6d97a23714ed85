package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/image/lock"
)

// Settle makes sure that every package of o's lock can be had. If a mirror has dropped some and no other source has them, it locks those anew, and
// what must move with them, into OUT/hullmark.lock, says loudly what moved, and returns options that build from there. The lock that o names is
// never changed. An image built from a settled lock is another image than the locked one as soon as anything moved.
func Settle(ctx context.Context, o Options) (Options, error) {
	l, err := ReadLock(o)
	if err != nil {
		return o, err
	}
	mirrors, err := o.mirrors()
	if err != nil {
		return o, err
	}
	err = newFetcher(o, mirrors).fetch(ctx, l, l.Packages)
	gone := movedPackages(err)
	if len(gone) == 0 {
		return o, err
	}
	anew, moves, err := Relock(ctx, o, l, gone)
	if err != nil {
		return o, fmt.Errorf("lock anew what is gone: %w", err)
	}
	o.Progress.Say("WARNING: %d of %d locked packages are gone from every source; %d moved:", len(gone), len(l.Packages), len(moves))
	for _, m := range moves {
		o.Progress.Say("WARNING:   %s", m)
	}
	o.LockFile = filepath.Join(o.Out, "hullmark.lock")
	o.Progress.Say("WARNING: building from %s instead, which gives another image", o.LockFile)
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return o, err
	}
	return o, WriteLock(o.LockFile, anew)
}

// movedPackages finds the packages in a tree of errors that are there no more.
func movedPackages(err error) []lock.Package {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var all []lock.Package
		for _, e := range many.Unwrap() {
			all = append(all, movedPackages(e)...)
		}
		return all
	}
	var moved *lock.MovedError
	if errors.As(err, &moved) {
		return []lock.Package{moved.Package}
	}
	return nil
}
