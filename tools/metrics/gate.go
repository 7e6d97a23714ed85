package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hullmark/hullmark/kubeadm/run"
)

// Limits of what strangers can have the API server asked.
const (
	// maxToken bounds a token, in bytes.
	maxToken = 8 << 10
	// Of tokens that were not seen lately so many are asked about at once, and in a second.
	askedAtOnce, askedPerSecond = 8, 4
	// An answer holds for so long; refusals, too.
	remembered = 30 * time.Second
	// Who was let in is asked about again for so long without being counted: others, who make tokens up, do not keep it out between
	// scrapes.
	trusted = 10 * time.Minute
	// maxRemembered bounds how many.
	maxRemembered = 256
	// askTimeout bounds one question.
	askTimeout = 10 * time.Second
)

// reviewer says what the bearer of a token may do; run.Reviewer is the real one.
type reviewer interface {
	MayReadMetrics(ctx context.Context, token, node string) (bool, error)
}

// gate lets those through who may read the node's metrics.
type gate struct {
	node  string
	asked *rate.Limiter
	// asking guards the reviewer, which is for one at a time, and mutex the answers: who is known waits for no question about others.
	asking  sync.Mutex
	review  reviewer
	mutex   sync.Mutex
	answers map[[sha256.Size]byte]answer
}

// answer is the status of a request by one token, until some time.
type answer struct {
	status int
	until  time.Time
}

func newGate(r reviewer, node string) *gate {
	return &gate{node: node, review: r, asked: rate.NewLimiter(askedPerSecond, askedAtOnce), answers: map[[sha256.Size]byte]answer{}}
}

// guard hands on the requests of those who may.
func (g *gate) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := g.judge(r.Context(), r.Header.Get("Authorization"))
		if status == http.StatusOK {
			next.ServeHTTP(w, r)
			return
		}
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, http.StatusText(status), status)
	})
}

// judge returns the status of who shows this.
func (g *gate) judge(ctx context.Context, authorization string) int {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return http.StatusUnauthorized
	}
	key := sha256.Sum256([]byte(token))
	status, wasLetIn := g.known(key)
	if status != 0 {
		return status
	}
	if !wasLetIn && !g.asked.Allow() {
		return http.StatusTooManyRequests
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	g.asking.Lock()
	may, err := g.review.MayReadMetrics(ctx, token, g.node)
	g.asking.Unlock()
	status = http.StatusForbidden
	switch {
	case errors.Is(err, run.ErrNoUser):
		status = http.StatusUnauthorized
	case err != nil:
		fmt.Fprintln(os.Stderr, "metrics: ask the API server who a caller is:", err)
		return http.StatusServiceUnavailable // Another question may be answered.
	case may:
		status = http.StatusOK
	}
	g.remember(key, answer{status, time.Now().Add(remembered)})
	return status
}

// known returns an answer that still holds, or 0, and whether its bearer was let in not long ago.
func (g *gate) known(key [sha256.Size]byte) (status int, wasLetIn bool) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	a, ok := g.answers[key]
	if ok && time.Now().Before(a.until) {
		return a.status, false
	}
	return 0, ok && a.wasLetIn()
}

// wasLetIn reports whether the bearer was let in not long ago.
func (a answer) wasLetIn() bool {
	return a.status == http.StatusOK && time.Now().Before(a.until.Add(trusted))
}

// remember keeps an answer, and forgets old ones, or all if there are too many.
func (g *gate) remember(key [sha256.Size]byte, a answer) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if len(g.answers) >= maxRemembered {
		for k, old := range g.answers {
			if time.Now().After(old.until) && !old.wasLetIn() {
				delete(g.answers, k)
			}
		}
	}
	if len(g.answers) >= maxRemembered {
		clear(g.answers)
	}
	g.answers[key] = a
}

// nodeName is the node's, as the kubelet's certificate says it.
func nodeName(o options) (string, error) {
	certificate, err := firstCertificate(filepath.Join(o.credentials, clientFile))
	if err != nil {
		return "", err
	}
	name, ok := strings.CutPrefix(certificate.Subject.CommonName, "system:node:")
	if !ok {
		return "", fmt.Errorf("the kubelet's certificate is for %.80q", certificate.Subject.CommonName)
	}
	return name, nil
}

// firstCertificate returns the first of a file in PEM.
func firstCertificate(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	defer clear(text)
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, fmt.Errorf("%s: no certificate", filepath.Base(file))
}
