package keeper

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/hashicorp/vault/api"
	"gocloud.dev/secrets/hashivault"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
)

// maxAnswer bounds what is read of a Vault's answer, in bytes.
const maxAnswer = 1 << 20

// keyName is the name of a key, or one step of an engine's path.
var keyName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

var (
	errLong = errors.New("the answer is too long")
	// errBroken is of an answer whose connection ended in the middle of it.
	errBroken = errors.New("the answer broke off")
)

// openVault opens "hashivault://KEY?address=https://HOST:PORT[&engine=PATH]": a
// key of a Vault's transit engine. The driver's own opener takes address and
// token from the environment; here they are the URL's and the credentials'.
func (c Credentials) openVault(ctx context.Context, u *url.URL) (keys.Keeper, error) {
	parameters, err := onlyParameters(u, "address", "engine")
	if err != nil {
		return nil, err
	}
	engine := parameters["engine"]
	if engine == "" {
		engine = "transit"
	}
	if !keyName.MatchString(u.Host) || u.Path != "" || !isPath(engine) {
		return nil, keys.Unusable("a URL that is not hashivault://KEY?address=https://HOST:PORT[&engine=PATH]")
	}
	if err := checkAddress(parameters["address"]); err != nil {
		return nil, err
	}
	if c.Secret.Len() == 0 {
		return nil, keys.Unusable("no token for the Vault")
	}
	httpClient, err := c.httpClient(ctx)
	if err != nil {
		return nil, keys.Unusable(err.Error())
	}
	client, err := hashivault.Dial(ctx, &hashivault.Config{Token: string(c.Secret.Expose()), APIConfig: api.Config{
		Address: parameters["address"], HttpClient: httpClient,
	}})
	if err != nil {
		return nil, keys.Unusable("an address or environment that Vault's client cannot use")
	}
	client.ClearNamespace() // The environment's.
	return driver{Keeper: hashivault.OpenKeeper(client, u.Host, &hashivault.KeeperOptions{Engine: engine}), explain: explainVault}, nil
}

// isPath reports whether each step of a path is a name.
func isPath(engine string) bool {
	for step := range strings.SplitSeq(engine, "/") {
		if !keyName.MatchString(step) {
			return false
		}
	}
	return true
}

func (c Credentials) roots() (*x509.CertPool, error) {
	if len(c.CA) == 0 {
		return nil, nil // The system's.
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CA) {
		return nil, errors.New("the keeper's authority: no certificate in PEM")
	}
	return roots, nil
}

// httpClient is bounded in what it reads, and by ctx in time: the driver hands
// its caller's context to nobody. Redirects are Vault's client's to follow.
func (c Credentials) httpClient(ctx context.Context) (*http.Client, error) {
	roots, err := c.roots()
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Transport: bounded{ctx, &http.Transport{
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			DisableKeepAlives:      true,
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: 64 << 10,
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// bounded reads at most maxAnswer bytes of each answer, until ctx ends, and tells an answer that broke off from one that is short.
type bounded struct {
	ctx context.Context
	http.RoundTripper
}

// RoundTrip is http.RoundTripper's.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request.WithContext(b.ctx))
	if err != nil {
		return nil, err
	}
	response.Body = &boundedBody{ReadCloser: response.Body, left: maxAnswer}
	return response, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

// Read is io.Reader's.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, errLong
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = errBroken
	}
	return n, err
}

// explainVault sorts an error by what can be done about it.
func explainVault(err error) *hullmark.Condition {
	var refused *api.ResponseError
	if errors.As(err, &refused) {
		return explainStatus(refused.StatusCode)
	}
	if errors.Is(err, errBroken) {
		return keys.Unreachable("a broken connection")
	}
	if errors.Is(err, errLong) {
		return keys.WrongAnswer(fmt.Sprintf("the keeper answered more than %d bytes", maxAnswer))
	}
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
		digits base64.CorruptInputError
	)
	if errors.As(err, &syntax) || errors.As(err, &kind) || errors.As(err, &digits) || errors.Is(err, io.ErrUnexpectedEOF) {
		return keys.WrongAnswer("the keeper's answer is not of its protocol")
	}
	return explainNetwork(err)
}

// explainStatus sorts an HTTP status of 400 and above: what a client did wrong stays wrong, but for "too early", "too many" and the like.
func explainStatus(status int) *hullmark.Condition {
	got := fmt.Sprintf("HTTP status %d", status)
	switch status {
	case http.StatusRequestTimeout, http.StatusPreconditionFailed, http.StatusTooEarly, http.StatusTooManyRequests:
		return keys.Unreachable(got)
	}
	if status < 500 {
		return keys.Refused(got)
	}
	return keys.Unreachable(got)
}

// explainNetwork names what is known without quoting the other side.
func explainNetwork(err error) *hullmark.Condition {
	var (
		certificate *tls.CertificateVerificationError
		name        *net.DNSError
		timeout     net.Error
		operation   *net.OpError
	)
	switch {
	case errors.As(err, &certificate):
		return keys.Unreachable("a certificate that is not accepted, for its authority, name or time")
	case errors.As(err, &name):
		return keys.Unreachable("no address for its name")
	case errors.As(err, &timeout) && timeout.Timeout():
		return keys.Unreachable("no answer in time")
	case errors.As(err, &operation):
		return keys.Unreachable("a connection that fails (" + operation.Op + ")")
	}
	return keys.Unreachable("a connection that fails")
}
