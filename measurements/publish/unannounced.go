package publish

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark/measurements/tlog"
)

// MaxUnannounced is how many releases Unannounced shows at most. Whoever writes a log may put anything into it, and these are enough to
// look into.
const MaxUnannounced = 32

// Logged is an entry of a log, and what a place knows of its release.
type Logged struct {
	Index int64
	tlog.Entry
	Standing Standing
}

// News is what is new in a log.
type News struct {
	// Unannounced are the releases by the key that a place does not announce as the log has them, each once.
	Unannounced []Logged
	// Others is how many entries are by other keys. The place was not asked for them.
	Others int64
	// Done is how many of the log's first entries need no look any more: all before the first one that is not announced.
	Done int64
}

// errEnough ends a look.
var errEnough = errors.New("enough was seen")

// Unannounced looks at the entries of a log from that number on, for releases by a key that a place does not announce: somebody may have
// been given them, and others not. The place is asked once for each release.
func Unannounced(ctx context.Context, from Source, r *tlog.Reader, first int64, key crypto.PublicKey) (News, error) {
	news, asked := News{Done: r.Size}, map[[sha256.Size]byte]bool{}
	err := r.EachFrom(first, func(index int64, e tlog.Entry) error {
		encoded, err := e.Encode()
		if err != nil {
			return err
		}
		if asked[sha256.Sum256(encoded)] {
			return nil
		}
		standing, err := StandingOf(ctx, from, e, []crypto.PublicKey{key})
		if err != nil {
			return fmt.Errorf("log %s: entry %d: %w", r.Origin, index, err)
		}
		if standing == ByAnotherKey {
			news.Others++
			return nil
		}
		asked[sha256.Sum256(encoded)] = true
		if standing == Announced {
			return nil
		}
		if len(news.Unannounced) == 0 {
			news.Done = index
		}
		if news.Unannounced = append(news.Unannounced, Logged{index, e, standing}); len(news.Unannounced) == MaxUnannounced {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return news, err
}
