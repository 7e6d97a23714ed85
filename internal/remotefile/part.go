package remotefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
)

// Doer is an HTTP client, which may know how to log in.
type Doer interface {
	Do(request *http.Request) (*http.Response, error)
}

// Part is what a server gives of a file. It ends with io.ErrUnexpectedEOF if less comes than the server said.
type Part struct {
	io.ReadCloser
	// Whole is set if the server gives whole files alone: the part begins at the file's first byte, whatever was asked for.
	Whole bool
	// Size is the file's length in bytes, or -1 if the server does not say it.
	Size int64
	// left is how many bytes are still to come; -1 is until the body ends.
	left int64
}

// ErrPastEnd is a part that would begin where the file has ended already.
var ErrPastEnd = errors.New("the file ends before that")

// permanent is an answer that would be the same if it was asked for once more.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent marks an error as one that does not pass.
func Permanent(err error) error { return permanent{err} }

// Temporary tells whether what failed may succeed if it is done again a little later.
func Temporary(err error) bool {
	var p permanent
	return !errors.As(err, &p)
}

// Open reads what lies at an address from an offset on: n bytes, or all that follows if n is negative. Of a server that gives whole files
// alone it returns those. A file that is not there is fs.ErrNotExist.
func Open(ctx context.Context, client Doer, address string, offset, n int64) (*Part, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, permanent{err}
	}
	request.Header.Set("Accept-Encoding", "identity")
	switch {
	case n >= 0:
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+n-1))
	case offset > 0:
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	part, err := newPart(response, offset, n)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", request.URL.Redacted(), err), response.Body.Close())
	}
	return part, nil
}

// newPart takes the part that was asked for, or a whole file.
func newPart(r *http.Response, offset, n int64) (*Part, error) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, permanent{fmt.Errorf("the server encodes it as %.20q, which was not asked for", encoding)}
	}
	switch code := r.StatusCode; code {
	case http.StatusOK:
		return &Part{ReadCloser: r.Body, Whole: true, Size: r.ContentLength, left: r.ContentLength}, nil
	case http.StatusPartialContent:
		return newRange(r, offset, n)
	case http.StatusNotFound:
		return nil, permanent{fs.ErrNotExist}
	case http.StatusRequestedRangeNotSatisfiable:
		return nil, permanent{ErrPastEnd}
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return nil, fmt.Errorf("the server answers %.80q", r.Status)
	default:
		err := fmt.Errorf("the server answers %.80q", r.Status)
		if code < http.StatusInternalServerError {
			err = permanent{err}
		}
		return nil, err
	}
}

// newRange takes an answer that is exactly the range that was asked for, to the end of the file if n is negative.
func newRange(r *http.Response, offset, n int64) (*Part, error) {
	text := r.Header.Get("Content-Range")
	first, last, size, err := parseContentRange(text)
	switch {
	case err != nil:
		return nil, permanent{err}
	case first != offset, n >= 0 && last != offset+n-1, n < 0 && size >= 0 && last != size-1:
		return nil, permanent{fmt.Errorf("%s were asked for, the server says it gives %.80q", r.Request.Header.Get("Range"), text)}
	}
	return &Part{ReadCloser: r.Body, Size: size, left: last - first + 1}, nil
}

// parseContentRange reads "bytes FIRST-LAST/SIZE" (RFC 9110 §14.4). A size that the server does not know, "*", is -1.
func parseContentRange(text string) (first, last, size int64, err error) {
	bounds, ok1 := strings.CutPrefix(text, "bytes ")
	bounds, all, ok2 := strings.Cut(bounds, "/")
	from, to, ok3 := strings.Cut(bounds, "-")
	if ok1 && ok2 && ok3 {
		size = -1
		var e1, e2, e3 error
		first, e1 = decimal(from)
		last, e2 = decimal(to)
		if all != "*" {
			size, e3 = decimal(all)
		}
		if errors.Join(e1, e2, e3) == nil && first <= last && (size < 0 || last < size) {
			return first, last, size, nil
		}
	}
	return 0, 0, 0, fmt.Errorf("the server's Content-Range is %.80q", text)
}

// decimal reads digits, and nothing but digits.
func decimal(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err
}

// Read reads on. It returns no more than the server said.
func (p *Part) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	if p.left > 0 {
		b = b[:min(int64(len(b)), p.left)]
	}
	n, err := p.ReadCloser.Read(b)
	if p.left > 0 {
		p.left -= int64(n)
		switch {
		case p.left == 0 && errors.Is(err, io.EOF): // This comes with the next call.
			err = nil
		case p.left > 0 && errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}
