package build

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark/image/lock"
)

// tracedDpkg is dpkg in the tools tree, for mkosi: beside what dpkg does it writes down which files of the tree are opened, and
// which programs run, by dpkg and by all that the scripts of packages start (strace(1)). Where no process may look at another
// one, it writes nothing.
const tracedDpkg = `#!/bin/sh
# dpkg; see image/build/reads.go.
tree=/buildroot
reads=$tree/var/lib/dpkg/reads
case " $* " in *" --root=$tree "*) ;; *) exec /usr/bin/dpkg.debian "$@" ;; esac
strace -qq -e trace=none -o /dev/null true 2>/dev/null || exec /usr/bin/dpkg.debian "$@"
strace -f -y -z -q --seccomp-bpf -s 0 -e signal=none -e trace=open,openat,openat2,execve,execveat -o "$reads.now" /usr/bin/dpkg.debian "$@"
status=$?
# Where the names of programs lead to, and what runs those that are scripts: the kernel opens both, and no call says so.
leads() { xargs -r chroot $tree readlink -f 2>/dev/null; }
programs=$(sed -n 's/.*execve("\([^"]*\)".*/\1/p' "$reads.now" | sort -u | leads)
interpreters=$(printf '%s\n' "$programs" | sed "s|^|$tree|" | xargs -r sed -sn '1s/^#! *\([^ ]*\).*/\1/p' 2>/dev/null | sort -u | leads)
printf '%s\n' "$programs" "$interpreters" | sed 's/^/ran /' | cat "$reads.now" - >>"$reads"
rm "$reads.now"
exit $status
`

// readsName is where mkosi.finalize puts what tracedDpkg wrote.
const readsName = "root.reads"

// buildroot is where the tree is while mkosi works on it.
const buildroot = "/buildroot/"

// reads are the files of a tree whose content may have had a part in what else is in it. Names are those of the tree.
type reads struct {
	// Read are those that dpkg and the scripts of packages opened or ran.
	Read map[string]bool
	// Linked are those that ldconfig alone opened.
	Linked map[string]bool
}

// parseReads reads what tracedDpkg wrote: lines of strace, each with a process in front, and the programs that ran. A line of any
// other form is an error.
func parseReads(r io.Reader) (reads, error) {
	out := reads{map[string]bool{}, map[string]bool{}}
	links := map[string]bool{} // the processes that are ldconfig
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		process, call, _ := strings.Cut(in.Text(), " ")
		call = strings.TrimLeft(call, " ")
		switch {
		case process == "ran":
			out.Read[strings.TrimPrefix(call, "/")] = true
			continue
		case strings.HasPrefix(call, "+++ "):
			delete(links, process)
			continue
		case strings.HasPrefix(call, "execve(") || strings.HasPrefix(call, "execveat("):
			_, program, _ := strings.Cut(call, `"`)
			program, _, _ = strings.Cut(program, `"`)
			links[process] = path.Base(program) == "ldconfig"
			continue
		case strings.HasPrefix(call, "<... "), strings.HasPrefix(call, "open"):
		default:
			return reads{}, fmt.Errorf("read what scripts read: %q", in.Text())
		}
		_, result, _ := strings.Cut(call, ") = ")
		_, file, opened := strings.Cut(result, "<")
		if !opened || writes(call) {
			continue
		}
		file, err := strconv.Unquote(`"` + strings.TrimSuffix(file, ">") + `"`) // with C's escapes
		if err != nil {
			return reads{}, fmt.Errorf("read what scripts read: %q: %w", in.Text(), err)
		}
		name, inTree := strings.CutPrefix(file, buildroot)
		switch {
		case !inTree:
		case links[process]:
			out.Linked[name] = true
		default:
			out.Read[name] = true
		}
	}
	return out, in.Err()
}

// writes tells whether a call opens a file that it cannot read, or that it empties.
func writes(call string) bool {
	return strings.Contains(call, "O_WRONLY") || strings.Contains(call, "O_TRUNC")
}

// noteMade writes what the tree in dir was made of, if somebody wrote down what scripts read, and no script of the definitions ran
// besides, which may read anything.
func noteMade(o Options, repository, rest string, l lock.Lock, dir string) error {
	f, err := os.Open(filepath.Join(dir, readsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	read, unclear := parseReads(f)
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		return err
	}
	if unclear != nil {
		o.Progress.Say("no later build can begin with this tree: %v", unclear)
		return nil
	}
	for i, folder := range o.definitions() {
		if scripts, err := hasScripts(folder, i == 0); err != nil || scripts {
			return err
		}
	}
	index, err := os.ReadFile(filepath.Join(repository, packagesIndex))
	if err != nil {
		return err
	}
	return made{
		Rest: rest, Packages: l.Of(lock.Root), Control: parseIndex(string(index)),
		Read: slices.Sorted(maps.Keys(read.Read)), Linked: slices.Sorted(maps.Keys(read.Linked)),
	}.write(dir)
}
