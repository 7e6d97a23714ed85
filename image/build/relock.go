package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/image/lock"
)

// Settle makes sure that every package of o's image can be had, and its release of Go. If a mirror has dropped some packages
// and no other source has them, it locks those anew, and what must move with them, into OUT/hullmark.lock, says loudly what
// moved, and returns options that build from there; in place of a release of Go that is gone it takes the machine's. The lock
// that o names is never changed. An image built from a settled lock is another image than the locked one as soon as anything
// moved.
func Settle(ctx context.Context, o Options) (Options, error) {
	l, err := ReadLock(o)
	if err != nil {
		return o, err
	}
	mirrors, err := o.mirrors()
	if err != nil {
		return o, err
	}
	f := newFetcher(o, mirrors)
	err = f.fetch(ctx, l, l.For(o.Profiles...).Packages)
	if len(movedPackages(err)) > 0 { // then those of other profiles have to fit what moves
		err = f.fetch(ctx, l, l.Packages)
	}
	gone := movedPackages(err)
	if err != nil && len(gone) == 0 {
		return o, err
	}
	anew := l
	if len(gone) > 0 {
		if anew, err = o.moveGone(ctx, l, gone); err != nil {
			return o, fmt.Errorf("lock anew what is gone: %w", err)
		}
	}
	lost := checkGo(ctx, l.Go, o.Source)
	if lost != nil && !errors.Is(lost, errGoGone) {
		return o, lost
	}
	if lost != nil {
		if anew.Go, err = machineGo(ctx, o.Source); err != nil {
			return o, err
		}
		o.Progress.Say("WARNING: %v: compiling with %s", lost, anew.Go)
	}
	if len(gone) == 0 && anew.Go == l.Go {
		return o, nil
	}
	o.LockFile = filepath.Join(o.Out, "hullmark.lock")
	o.Progress.Say("WARNING: building from %s instead, which gives another image", o.LockFile)
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return o, err
	}
	return o, WriteLock(o.LockFile, anew)
}

// moveGone locks gone packages anew and says what moved.
func (o Options) moveGone(ctx context.Context, l lock.Lock, gone []lock.Package) (lock.Lock, error) {
	anew, moves, err := Relock(ctx, o, l, gone)
	if err != nil {
		return l, err
	}
	o.Progress.Say("WARNING: %d of %d locked packages are gone from every source; %d moved:", len(gone), len(l.Packages), len(moves))
	for _, m := range moves {
		o.Progress.Say("WARNING:   %s", m)
	}
	return anew, nil
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
