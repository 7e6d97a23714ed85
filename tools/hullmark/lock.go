package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
)

func newLockCommand() *cobra.Command {
	var f buildFlags
	var historical, fewer, keep bool
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Choose the newest packages of the signed archives and lock them",
		Long: `Choose the newest packages of the signed archives and lock them.

The Debian archives of this machine's APT configuration are asked for release trixie, its updates and security updates. Their indexes must be
signed by a key of debian-archive-keyring. The compiler is this machine's release of Go. What is chosen, with all that it depends on, is written to the lock file with version, hash and
size, and what moved since the last lock is shown, with the date of each index. An index that is older than the last lock's, or past the end that the archive
gives it, is refused: somebody may show it again to hold security updates back. For an old image, on purpose, name --historical. With --keep
nothing moves that can still be had, and only what the definitions ask for beyond the lock is added, such as the packages of a new profile. A suite
that the last lock has, and this machine's archives have no more, is refused, too; to go without it from now on, name --fewer-suites. A lock that cannot be read is left as it is: bring it back as it was, or remove it
to begin without one.`,
		Example: "  hullmark lock\n  hullmark lock --keep\n  hullmark lock --config my-node --lock my-node/hullmark.lock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			o.Historical, o.FewerSuites = historical, fewer
			before, err := build.ReadLock(o)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is there, and says of no index how new it was: %w", o.LockFile, err)
			}
			choose := build.Lock
			if keep {
				choose = build.LockMore
			}
			after, err := choose(cmd.Context(), o, before)
			if err != nil {
				return err
			}
			if err := build.WriteLock(o.LockFile, after); err != nil {
				return err
			}
			return writeMoves(cmd.OutOrStdout(), o.LockFile, before, after)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&historical, "historical", false, "accept indexes older than the last lock's or past their end, for an image of an earlier day")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep every locked package that can still be had, and add only what the definitions ask for beyond them")
	cmd.Flags().BoolVar(&fewer, "fewer-suites", false, "go without suites that the last lock has, and this machine's archives do not")
	return cmd
}

func writeMoves(w io.Writer, file string, before, after lock.Lock) error {
	moves := lock.Compare(before, after)
	if len(before.Packages) > 0 {
		for _, m := range moves {
			if _, err := fmt.Fprintln(w, m); err != nil {
				return err
			}
		}
	}
	if before.Go != after.Go {
		if _, err := fmt.Fprintf(w, "compiler: %s became %s\n", cmp.Or(before.Go, "none"), after.Go); err != nil {
			return err
		}
	}
	for _, s := range after.Suites {
		if _, err := fmt.Fprintf(w, "index: %v\n", s); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s: %d packages for the image, %d for the tools tree; %d moved\n",
		file, len(after.Of(lock.Root)), len(after.Of(lock.Tools)), len(moves))
	return err
}
