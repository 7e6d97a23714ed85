package build

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/lock"
)

// index is one suite's signed index, as apt fetched it and checked its signature.
type index struct {
	lock.Suite
	validUntil time.Time // zero where the archive names no end, as for a release itself
}

// ErrReplayed is wrapped by errors that say that an archive, or who stands before it, showed a signed index that is too old.
var ErrReplayed = errors.New("an old index is shown again")

// indexes are what update fetched.
func (a apt) indexes() ([]index, error) {
	var all []index
	for _, s := range a.sources {
		for _, name := range s.suites {
			if s.local {
				continue
			}
			file, err := os.ReadFile(filepath.Join(a.dir, "var/lib/apt/lists", listName(s.url, name)))
			if err != nil {
				return nil, fmt.Errorf("read signed index of %s %s: %w", s.archive, name, err)
			}
			in, err := readIndex(file)
			if err != nil {
				return nil, fmt.Errorf("read signed index of %s %s: %w", s.archive, name, err)
			}
			in.Archive, in.Name = s.archive, name
			all = append(all, in)
		}
	}
	return all, nil
}

// suites fetches the indexes and returns what of them a lock holds, and the Unix time of the newest. Unless the options ask for
// a historical lock, an index that is older than in the earlier lock, or past its own end, is refused. So is an earlier lock
// with suites that are not asked for any more, unless the options allow it.
func (o Options) suites(a apt, earlier []lock.Suite, now time.Time) (suites []lock.Suite, newest int64, err error) {
	all, err := a.indexes()
	if err != nil {
		return nil, 0, err
	}
	if err := o.dropped(all, earlier); err != nil {
		return nil, 0, err
	}
	for _, in := range all {
		if !o.Historical {
			if err := in.fresh(earlier, now); err != nil {
				return nil, 0, err
			}
		}
		suites = append(suites, in.Suite)
		newest = max(newest, in.Date)
	}
	return suites, newest, nil
}

// ErrSuiteLost is wrapped by an error that says that a suite of the earlier lock is not asked for any more.
var ErrSuiteLost = errors.New("a suite of the lock is not asked for any more")

// dropped finds suites of the earlier lock that are gone: the security updates', where a mirror has none, or a suite under
// another name. The lock after this one would take any index of them.
func (o Options) dropped(all []index, earlier []lock.Suite) error {
	for _, s := range earlier {
		if slices.ContainsFunc(all, func(in index) bool { return in.Archive == s.Archive && in.Name == s.Name }) {
			continue
		}
		if !o.FewerSuites {
			return fmt.Errorf("%w: %v: ask a mirror that has it, or name --fewer-suites to go without it from now on", ErrSuiteLost, s)
		}
		o.Progress.Say("WARNING: the image goes without %s %s, which the lock has of %s: no index of it is held to a date any more", s.Archive, s.Name, stamp(time.Unix(s.Date, 0)))
	}
	return nil
}

// fresh says whether an index is no older than the locked one, and not past its end.
func (in index) fresh(earlier []lock.Suite, now time.Time) error {
	const next = "ask another mirror, or name --historical if an old image is wanted"
	i := slices.IndexFunc(earlier, func(s lock.Suite) bool { return s.Archive == in.Archive && s.Name == in.Name })
	if i >= 0 && in.Date < earlier[i].Date {
		return fmt.Errorf("%w: %v, but the lock has that %v; %s", ErrReplayed, in, earlier[i], next)
	}
	if !in.validUntil.IsZero() && now.After(in.validUntil) {
		return fmt.Errorf("%w: %v is valid until %s, and it is %s; %s, and look at this machine's clock", ErrReplayed, in, stamp(in.validUntil), stamp(now), next)
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// readIndex reads the dates of an index (Debian repository format). Only what lies under the signature counts.
func readIndex(file []byte) (in index, err error) {
	signed, err := signedText(file)
	if err != nil {
		return in, err
	}
	sum := sha256.Sum256(file)
	in.InRelease = hex.EncodeToString(sum[:])
	made, err := dateIn(signed, "Date")
	if err != nil {
		return in, err
	}
	if made.IsZero() {
		return in, errors.New("it has no Date")
	}
	in.Date = made.Unix()
	in.validUntil, err = dateIn(signed, "Valid-Until")
	return in, err
}

// dateIn reads a field that may stand there once, or not at all.
func dateIn(signed []byte, field string) (at time.Time, err error) {
	for line := range bytes.Lines(signed) {
		name, value, _ := strings.Cut(string(line), ":")
		if !strings.EqualFold(name, field) {
			continue
		}
		if !at.IsZero() {
			return at, fmt.Errorf("it has two fields %s", field)
		}
		if at, err = time.Parse(time.RFC1123, strings.TrimSpace(value)); err != nil {
			return at, fmt.Errorf("field %s: %w", field, err)
		}
	}
	return at, nil
}

// signedText returns what a file signs in clear (RFC 9580 §7), which has to have the one form that archives write: lines that
// name hashes, one empty line, the text, and the signature. Others take a line of white space for an empty one, too, and what
// looks like a signature in the text for its end: whoever reads the same file in two ways believes a date that nobody signed.
func signedText(file []byte) ([]byte, error) {
	rest, found := bytes.CutPrefix(file, []byte("-----BEGIN PGP SIGNED MESSAGE-----\n"))
	if !found || bytes.ContainsRune(file, '\r') {
		return nil, errors.New("it is no signed message")
	}
	for bytes.HasPrefix(rest, []byte("Hash: ")) {
		_, rest, _ = bytes.Cut(rest, []byte("\n"))
	}
	if rest, found = bytes.CutPrefix(rest, []byte("\n")); !found {
		return nil, errors.New("its signed message does not begin with hashes and an empty line")
	}
	var text []byte
	for line := range bytes.Lines(rest) {
		switch {
		case bytes.Equal(line, []byte("-----BEGIN PGP SIGNATURE-----\n")):
			return text, nil
		case line[0] == '-':
			return nil, errors.New("its signed message has a line that begins with a hyphen, as none of an archive's has")
		}
		text = append(text, line...)
	}
	return nil, errors.New("its signed message does not end with a signature")
}
