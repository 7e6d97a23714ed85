package keys

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
)

// The codes of what stands between a join service and its keyset (docs/keepers.md).
const (
	// CodeUnreachable: the keeper cannot be reached, stalls or is out of order. It passes by itself.
	CodeUnreachable = "keeper-unreachable"
	// CodeRefused: the keeper answered that it will not. Somebody has to change something.
	CodeRefused = "keeper-refused"
	// CodeAnswer: what the keeper answered is not the cluster's keyset.
	CodeAnswer = "keeper-answer"
	// CodeSetting: the keeper's URL or this client's credential cannot be used.
	CodeSetting = "keeper-setting"
)

const (
	// defaultTry is how long one try to reach a keeper may take.
	defaultTry = 10 * time.Second
	// minPause and maxPause bound the pause between two tries, before jitter.
	minPause = time.Second
	maxPause = 30 * time.Second
	// maxSecret bounds what Wrap takes, in bytes.
	maxSecret = 4 << 10
	// maxCiphertext bounds what a keeper makes of a keyset, in bytes.
	maxCiphertext = 2 * maxEncoded
)

// label begins every plaintext that a keeper is given, so that nothing else which the same key wrapped is taken for a keyset.
const label = "hullmark/v1/keyset\x00"

// Keeper wraps a keyset with a key that it does not give away. Its errors are
// *hullmark.Condition without text of the keeper's server, which may have
// written anything there; another error counts as unreachable and is not shown.
// gocloud.dev/secrets.Keeper has these methods.
type Keeper interface {
	// Encrypt wraps a plaintext that is as secret as the keyset.
	Encrypt(ctx context.Context, plaintext []byte) ([]byte, error)
	// Decrypt returns what Encrypt was given; the caller wipes it.
	Decrypt(ctx context.Context, ciphertext []byte) ([]byte, error)
	// Close gives up connections.
	Close() error
}

// Access reaches keepers, with a time limit for each try and a jittered pause before the next.
type Access struct {
	// Open returns the keeper that a URL names. It need not be good for longer than ctx is.
	Open func(ctx context.Context, url string) (Keeper, error)
	// Try is how long one try may take; 10 s if it is 0.
	Try time.Duration
	// Report, if it is set, hears before each pause why the last try failed, and how long the pause is.
	Report func(cause *hullmark.Condition, pause time.Duration)
}

// Seal has the keeper at url wrap a keyset, bound to the cluster's first root, and
// returns the document that Load reads. The keeper must have shown that it can
// open what it wrapped. A transient failure is tried again until ctx ends.
func (a Access) Seal(ctx context.Context, k Keyset, root hullmark.ClusterRoot, url string) ([]byte, error) {
	if err := checkURL(url); err != nil {
		return nil, Unusable(err.Error())
	}
	encoded, err := k.Encode()
	if err != nil {
		return nil, err
	}
	defer clear(encoded)
	plaintext := slices.Concat([]byte(label), root[:], encoded)
	defer clear(plaintext)
	document, err := a.wrap(ctx, plaintext, url)
	if err != nil {
		return nil, err
	}
	again, err := a.open(ctx, document, root)
	if err != nil {
		return nil, err
	}
	defer again.Wipe()
	if !again.equal(k) {
		return nil, WrongAnswer("the keeper opened another keyset than the one that it wrapped")
	}
	return document.encode()
}

// wrap has the keeper at url encrypt a plaintext, and looks whether it did.
func (a Access) wrap(ctx context.Context, plaintext []byte, url string) (sealed, error) {
	ciphertext, err := a.persist(ctx, url, Keeper.Encrypt, plaintext)
	if err == nil {
		err = checkCiphertext(ciphertext, plaintext)
	}
	return sealed{Version: 2, Keeper: url, Ciphertext: ciphertext}, err
}

// Wrap is Seal for another secret than a keyset, of at most maxSecret bytes. Its use, a word such as "sealing-key", keeps what was wrapped
// for one use from being taken for another's. Unwrap reads the document.
func (a Access) Wrap(ctx context.Context, use string, secret []byte, url string) ([]byte, error) {
	if err := checkURL(url); err != nil {
		return nil, Unusable(err.Error())
	}
	if len(secret) == 0 || len(secret) > maxSecret {
		return nil, fmt.Errorf("wrap: a secret of %d bytes, want 1 to %d", len(secret), maxSecret)
	}
	plaintext := slices.Concat(useLabel(use), secret)
	defer clear(plaintext)
	document, err := a.wrap(ctx, plaintext, url)
	if err != nil {
		return nil, err
	}
	encoded, err := document.encode()
	if err != nil {
		return nil, err
	}
	again, err := a.Unwrap(ctx, use, encoded)
	if err != nil {
		return nil, err
	}
	defer clear(again)
	if !bytes.Equal(again, secret) {
		return nil, WrongAnswer("the keeper opened something else than what it wrapped")
	}
	return encoded, nil
}

// Unwrap has the keeper that a document of Wrap names open it, and returns the secret, which the caller wipes. A transient failure is
// tried again until ctx ends; the error is then a *hullmark.Condition with Retry.
func (a Access) Unwrap(ctx context.Context, use string, document []byte) ([]byte, error) {
	parsed, wrapped, err := parseSealed(document)
	if err == nil && !wrapped {
		err = errors.New("no keeper wrapped it")
	}
	if err != nil {
		return nil, err
	}
	plaintext, err := a.persist(ctx, parsed.Keeper, Keeper.Decrypt, parsed.Ciphertext)
	if err != nil {
		return nil, err
	}
	defer clear(plaintext)
	label := useLabel(use)
	if !bytes.HasPrefix(plaintext, label) || len(plaintext) == len(label) || len(plaintext) > len(label)+maxSecret {
		return nil, WrongAnswer("what the keeper opened is not what was wrapped for this use")
	}
	return bytes.Clone(plaintext[len(label):]), nil
}

// useLabel begins the plaintext of Wrap.
func useLabel(use string) []byte { return []byte("hullmark/v1/wrapped/" + use + "\x00") }

// Load reads a control plane's keyset file: the keyset itself, or the document
// that Seal made of it, which its keeper opens. What is opened stays in memory.
// A transient failure is tried again until ctx ends; the error is then a
// *hullmark.Condition with Retry.
func (a Access) Load(ctx context.Context, encoded []byte, root hullmark.ClusterRoot) (Keyset, error) {
	document, wrapped, err := parseSealed(encoded)
	if err != nil {
		return Keyset{}, err
	}
	if !wrapped {
		return Parse(encoded)
	}
	return a.open(ctx, document, root)
}

// Check reads a keyset file as strictly as Load does, as far as that needs no keeper.
func Check(encoded []byte) error {
	_, wrapped, err := parseSealed(encoded)
	if err != nil || wrapped {
		return err
	}
	k, err := Parse(encoded)
	k.Wipe()
	return err
}

// open has the keeper open a document, and checks that what it answers is this cluster's keyset.
func (a Access) open(ctx context.Context, document sealed, root hullmark.ClusterRoot) (Keyset, error) {
	plaintext, err := a.persist(ctx, document.Keeper, Keeper.Decrypt, document.Ciphertext)
	if err != nil {
		return Keyset{}, err
	}
	defer clear(plaintext)
	return unbind(plaintext, root)
}

// unbind returns the keyset of a plaintext that is bound to root. No error holds a byte of the plaintext but the root's.
func unbind(plaintext []byte, root hullmark.ClusterRoot) (Keyset, error) {
	if len(plaintext) > len(label)+len(root)+maxEncoded {
		return Keyset{}, WrongAnswer(fmt.Sprintf("the keeper answered %d bytes, more than any keyset has", len(plaintext)))
	}
	if len(plaintext) < len(label)+len(root) || string(plaintext[:len(label)]) != label {
		return Keyset{}, WrongAnswer("what the keeper opened is no keyset")
	}
	bound := hullmark.ClusterRoot(plaintext[len(label):][:len(root)])
	if bound != root {
		c := WrongAnswer("what the keeper opened is another cluster's keyset")
		c.Expected, c.Got = root.String(), bound.String()
		return Keyset{}, c
	}
	keyset, err := Parse(plaintext[len(label)+len(root):])
	if err != nil { // Its text may quote the plaintext.
		return Keyset{}, WrongAnswer("what the keeper opened is no whole keyset")
	}
	return keyset, nil
}

// request is Keeper.Encrypt or Keeper.Decrypt.
type request func(Keeper, context.Context, []byte) ([]byte, error)

// persist makes one request of the keeper at url until it is answered for good or ctx ends.
func (a Access) persist(ctx context.Context, url string, do request, input []byte) ([]byte, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		answer, err := a.try(ctx, url, do, input)
		if err == nil {
			return answer, nil
		}
		cause := condition(err)
		if !cause.Retry || ctx.Err() != nil {
			return nil, cause
		}
		wait := pause/2 + rand.N(pause/2)
		if a.Report != nil {
			a.Report(cause, wait)
		}
		select {
		case <-ctx.Done():
			return nil, cause
		case <-time.After(wait):
		}
	}
}

// try makes one request. A driver may ignore its context or fall over what it
// is answered: the request is given up when its time is over, and a late answer is wiped.
func (a Access) try(ctx context.Context, url string, do request, input []byte) ([]byte, error) {
	limit := a.Try
	if limit == 0 {
		limit = defaultTry
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type result struct {
		answer []byte
		err    error
	}
	results := make(chan result)
	input = bytes.Clone(input) // The caller may wipe its own while a driver that was given up still reads.
	go func() {
		var r result
		r.answer, r.err = a.guarded(ctx, url, do, input)
		clear(input)
		select {
		case results <- r:
		case <-ctx.Done():
			clear(r.answer)
		}
	}()
	select {
	case r := <-results:
		return r.answer, r.err
	case <-ctx.Done():
		return nil, Unreachable("it gave no answer in time")
	}
}

// guarded opens the keeper and makes the request; a driver's panic is a wrong answer.
func (a Access) guarded(ctx context.Context, url string, do request, input []byte) (answer []byte, err error) {
	defer func() {
		if recover() != nil { // What it says may quote the answer.
			answer, err = nil, WrongAnswer("the keeper's answer is not of its protocol")
		}
	}()
	keeper, err := a.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	answer, err = do(keeper, ctx, input)
	if closed := keeper.Close(); err == nil && closed != nil {
		clear(answer)
		return nil, closed
	}
	return answer, err
}

// Unreachable is the condition of a keeper that may answer later; got says what was seen of it.
func Unreachable(got string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: CodeUnreachable, Title: "the keeper does not answer", Got: got,
		Expected: "an answer", Next: "look at the keeper and at the way to it; it is tried again", Retry: true,
	}
}

// Refused is the condition of a keeper that will not; got says how it put that.
func Refused(got string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: CodeRefused, Title: "the keeper refuses to wrap or to open", Got: got,
		Expected: "permission", Next: "see that the keeper has the key and lets this client use it (docs/keepers.md)",
	}
}

// Unusable is the condition of a URL or credential that no keeper can be opened with; got says why, without quoting a secret.
func Unusable(got string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: CodeSetting, Title: "the keeper's URL or credential cannot be used", Got: got,
		Expected: "both as docs/keepers.md describes them", Next: "set the keeper again (hullmark cluster keeper set)",
	}
}

// WrongAnswer is the condition of an answer that cannot be right; title says what is wrong with it, without quoting it.
func WrongAnswer(title string) *hullmark.Condition {
	return &hullmark.Condition{Code: CodeAnswer, Title: title, Next: "see which keeper and key the keyset was wrapped with (docs/keepers.md)"}
}

// condition returns the condition that err carries. Another error's text is not shown.
func condition(err error) *hullmark.Condition {
	var c *hullmark.Condition
	if errors.As(err, &c) {
		return c
	}
	return Unreachable("an error without a name")
}

// checkCiphertext refuses what holds the keyset in clear, as it is or in
// base64: it would be written to disk.
func checkCiphertext(ciphertext, plaintext []byte) error {
	if len(ciphertext) == 0 || len(ciphertext) > maxCiphertext {
		return WrongAnswer(fmt.Sprintf("the keeper answered %d bytes for a keyset, want 1 to %d", len(ciphertext), maxCiphertext))
	}
	text := make([]byte, base64.RawStdEncoding.EncodedLen(len(plaintext)))
	defer clear(text)
	base64.RawStdEncoding.Encode(text, plaintext)
	if bytes.Contains(ciphertext, plaintext) || bytes.Contains(ciphertext, text) {
		return WrongAnswer("the keeper answered the keyset itself")
	}
	return nil
}
