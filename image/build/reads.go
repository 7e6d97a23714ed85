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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hullmark/hullmark/image/lock"
)

// tracedDpkg is dpkg in the tools tree, for mkosi: beside what dpkg does it writes down which files of the tree are opened, and
// which programs run, by dpkg and by all that the scripts of packages start (strace(1)). Where that cannot be done, or fails, it says so.
const tracedDpkg = `#!/bin/sh
# dpkg; see image/build/reads.go.
tree=/buildroot
reads=$tree/var/lib/dpkg/reads
case " $* " in *" --root=$tree "*) ;; *) exec /usr/bin/dpkg.debian "$@" ;; esac
if ! strace -qq -e trace=none -o /dev/null true 2>/dev/null; then
	echo untraced >>"$reads"
	exec /usr/bin/dpkg.debian "$@"
fi
rm -f "$reads.status"
strace -f -y -z -q -I 2 --seccomp-bpf -s 4096 -e signal=none \
	-e trace=open,openat,openat2,execve,execveat,link,linkat,symlink,symlinkat,rename,renameat,renameat2 \
	-o "$reads.now" sh -c '"$@"; echo $? >'"$reads.status" sh /usr/bin/dpkg.debian "$@" &
# strace waits for whatever scripts left behind, which dpkg does not.
while kill -0 $! 2>/dev/null && [ ! -e "$reads.status" ]; do sleep 0.05; done
for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 $! 2>/dev/null && sleep 0.05; done
kill -TERM $! 2>/dev/null && echo untraced >>"$reads"
wait
read -r status <"$reads.status" || exit 1
# Where the names of programs lead to, and what runs those that are scripts: the kernel opens both, and no call says so.
leads() { tr '\n' '\0' | xargs -0 -r chroot $tree readlink -m; }
set -e
{
	sed -n 's/^[0-9]* *execve[at]*([^"]*"\([^"]*\)".*/\1/p' "$reads.now"
	cat $tree/var/lib/dpkg/alternatives/* 2>/dev/null | grep '^/' || true
} | sort -u | leads | sort -u >"$reads.ran"
{
	sed "s|^|$tree|" "$reads.ran"
	ls -d $tree/var/lib/dpkg/info/*.preinst 2>/dev/null || true
} | while read -r program; do
	if [ -f "$program" ]; then printf '%s\0' "$program"; fi
done | xargs -0 -r sed -sn '1s/^#![[:space:]]*\([^[:space:]]*\).*/\1/p' | sort -u | leads >>"$reads.ran"
{ cat "$reads.now"; sed 's/^/ran /' "$reads.ran"; echo end; } >>"$reads"
rm "$reads.now" "$reads.ran" "$reads.status"
exit "$status"
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
	// Bases are the last elements of names that scripts ran, linked to or renamed, by whatever way they named them.
	Bases map[string]bool
	// Asked are the words with which scripts asked dpkg for packages. One with a star asks for any.
	Asked map[string]bool
}

// parseReads reads what tracedDpkg wrote: lines of strace, each with a process in front, the programs that ran, and an end for each
// time that dpkg ran. It fails for what it does not understand, since that may have been a read.
func parseReads(r io.Reader) (reads, error) {
	out := reads{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	programs := map[string]string{} // by process
	whole := false
	in := bufio.NewScanner(r)
	in.Buffer(nil, 8<<20)
	for in.Scan() {
		process, call, _ := strings.Cut(in.Text(), " ")
		call = strings.TrimLeft(call, " ")
		name, rest, isCall := strings.Cut(call, "(")
		whole = process == "end"
		var err error
		switch {
		case process == "end":
		case process == "ran":
			out.Read[strings.TrimPrefix(call, "/")] = true
			out.Bases[path.Base(call)] = true
		case strings.HasPrefix(call, "+++ "):
			delete(programs, process)
		case isCall && strings.HasPrefix(name, "exec"):
			err = out.ran(rest, process, programs)
		case isCall && strings.HasPrefix(name, "open"):
			err = out.opened(rest, programs[process])
		case isCall && (strings.Contains(name, "link") || strings.HasPrefix(name, "rename")):
			if programs[process] != "dpkg.debian" {
				var words []string
				if words, err = quoted(rest); err == nil {
					for _, word := range words {
						out.Bases[path.Base(word)] = true
					}
				}
			}
		default:
			err = errors.New("it is nothing that is known")
		}
		if err != nil {
			return reads{}, fmt.Errorf("read what scripts read: %.300q: %w", in.Text(), err)
		}
	}
	if in.Err() == nil && !whole {
		return reads{}, errors.New("read what scripts read: it does not end")
	}
	return out, in.Err()
}

// ran notes the program that a process became, and what it asks of dpkg.
func (r reads) ran(arguments, process string, programs map[string]string) error {
	words, err := quoted(arguments)
	if err != nil || len(words) == 0 {
		return errors.Join(err, errors.New("no program"))
	}
	program := path.Base(words[0])
	programs[process] = program
	r.Bases[program] = true
	about := func(word string) bool {
		return strings.HasPrefix(word, "--print-") || strings.HasPrefix(word, "--assert-") || word == "--compare-versions"
	}
	if (program == "dpkg" || program == "dpkg-query") && !slices.ContainsFunc(words, about) {
		if strings.Contains(arguments, "...") || len(words) <= 3 { // cut, or nothing but an option: it lists all
			r.Asked["*"] = true
		}
		for _, word := range words[1:] {
			r.Asked[word] = true
		}
	}
	return nil
}

// opened notes a file of the tree that a program opened, unless it cannot read it, or empties it.
func (r reads) opened(call, program string) error {
	at := strings.LastIndex(call, ") = ")
	if at < 0 {
		return errors.New("it has no result")
	}
	flags := call[strings.LastIndex(call[:at], `"`)+1 : at]
	_, file, named := strings.Cut(call[at:], "<")
	if !named {
		return errors.New("it has no name")
	}
	if strings.Contains(flags, "O_WRONLY") || strings.Contains(flags, "O_TRUNC") {
		return nil
	}
	file, err := strconv.Unquote(`"` + strings.TrimSuffix(strings.TrimSuffix(file, "(deleted)"), ">") + `"`) // with C's escapes
	if err != nil || !utf8.ValidString(file) {
		return errors.Join(err, errors.New("its name cannot be read"))
	}
	name, inTree := strings.CutPrefix(file, buildroot)
	switch {
	case !inTree:
	case program == "ldconfig":
		r.Linked[name] = true
	default:
		r.Read[name] = true
		list := name == "var/lib/dpkg/status" || strings.HasSuffix(name, ".list") && strings.HasPrefix(name, "var/lib/dpkg/info/")
		if list && !strings.HasPrefix(program, "dpkg") && program != "update-alternatives" {
			r.Asked["*"] = true
		}
	}
	return nil
}

// quoted lists the strings among a call's arguments.
func quoted(arguments string) (words []string, err error) {
	for {
		at := strings.IndexByte(arguments, '"')
		if at < 0 {
			return words, nil
		}
		text, err := strconv.QuotedPrefix(arguments[at:])
		if err != nil {
			return nil, err
		}
		word, err := strconv.Unquote(text)
		if err != nil {
			return nil, err
		}
		words, arguments = append(words, word), arguments[at+len(text):]
	}
}

// noteMade writes what the tree in dir was made of, if somebody wrote down what scripts read, and no script of the definitions ran
// besides, which may read anything.
func noteMade(o Options, repository, rest string, removed []string, l lock.Lock, dir string) error {
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
		if i > 0 {
			if more, err := hasTrees(folder); err != nil || more {
				return err
			}
		}
		extra := filepath.Join(folder, extraFolder)
		err := filepath.WalkDir(extra, func(file string, _ fs.DirEntry, err error) error {
			if name, e := filepath.Rel(extra, file); err == nil && e == nil {
				read.Read[name] = true // its content is the folder's, whatever a package has there
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
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
		Bases: slices.Sorted(maps.Keys(read.Bases)), Asked: slices.Sorted(maps.Keys(read.Asked)), Removed: removed,
	}.write(dir)
}

// trees are the settings of a definition file that lay other files over those of packages.
var trees = regexp.MustCompile(`(?m)^\s*@?(Extra|Skeleton|Base)Trees\s*=`)

// hasTrees tells whether a definition folder lays files over the tree from elsewhere than its mkosi.extra.
func hasTrees(folder string) (bool, error) {
	for _, file := range definitionFiles(folder) {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if trees.Match(text) {
			return true, nil
		}
	}
	skeleton, _ := filepath.Glob(filepath.Join(folder, "mkosi.skeleton*"))
	return len(skeleton) > 0, nil
}
