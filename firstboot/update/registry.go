package update

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/hullmark/hullmark/internal/remotefile"
)

const registryScheme = "oci://"

// Limits of what a registry may say, in bytes.
const (
	maxChallenge = 4 << 10
	maxToken     = 16 << 10
	// maxAnswer is for the answer that a token is in.
	maxAnswer = 64 << 10
)

// Names in a registry (OCI distribution-spec 1.1, "Pulling manifests").
var (
	repositoryForm = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagForm        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// parsePlace reads oci://HOST/NAME:TAG; the tag may be missing.
func parsePlace(place string) (host, repository string, err error) {
	host, name, _ := strings.Cut(strings.TrimPrefix(place, registryScheme), "/")
	repository, tag, tagged := strings.Cut(name, ":")
	base, err := url.Parse("https://" + host + "/")
	if err != nil || base.Host != host || host == "" || len(repository) > 255 || !repositoryForm.MatchString(repository) || tagged && !tagForm.MatchString(tag) {
		return "", "", fmt.Errorf("source %.200q: want oci://HOST/NAME:TAG", place)
	}
	if host == "docker.io" {
		host = "registry-1.docker.io" // where its registry is
	}
	return host, repository, nil
}

// openRegistry returns the blob that is a disk. Only a registry on this machine is spoken to without TLS.
func openRegistry(place, digest string) (Source, error) {
	host, repository, err := parsePlace(place)
	if err != nil {
		return nil, err
	}
	scheme, here := "https", remotefile.IsHere(host)
	if here {
		scheme = "http"
	}
	transport := remotefile.Private{RoundTripper: remotefile.NewTransport(answerTimeout), Here: here}
	client := &http.Client{Transport: remotefile.Patient{RoundTripper: transport}, CheckRedirect: remotefile.BlobsMayMove}
	return web{scheme + "://" + host + "/v2/" + repository + "/blobs/sha256:" + digest, &anybody{client: client, repository: repository}}, nil
}

// anybody is a client without a login: it asks for the token that a registry gives to whoever wants to read what is for all.
type anybody struct {
	client     *http.Client
	repository string
	token      string
}

// Do implements remotefile.Doer.
func (a *anybody) Do(request *http.Request) (*http.Response, error) {
	response, err := a.send(request)
	if err != nil || response.StatusCode != http.StatusUnauthorized || response.Request.URL.Host != request.URL.Host {
		return response, err
	}
	err = a.newToken(request.Context(), response.Header.Values("WWW-Authenticate"))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("%s wants a login: %w", request.URL.Host, err)
	}
	return a.send(request)
}

func (a *anybody) send(request *http.Request) (*http.Response, error) {
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.client.Do(request)
}

// newToken asks for a token where a challenge says (CNCF distribution, "Token Authentication Specification").
func (a *anybody) newToken(ctx context.Context, challenges []string) error {
	var realm *url.URL
	var service string
	for _, challenge := range challenges {
		if r, s, err := parseChallenge(challenge); err == nil {
			realm, service = r, s
		}
	}
	if realm == nil {
		return remotefile.Permanent(errors.New("it gives no token to anybody; publish where no login is needed"))
	}
	query := realm.Query()
	query.Set("service", service)
	query.Set("scope", "repository:"+a.repository+":pull")
	realm.RawQuery = query.Encode()
	part, err := remotefile.Open(ctx, a.client, realm.String(), 0, -1)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(part, maxAnswer+1))
	if err := errors.Join(err, part.Close()); err != nil {
		return err
	}
	if a.token, err = parseToken(answer); err != nil {
		return remotefile.Permanent(err)
	}
	return nil
}

// parameter is one of a challenge, and what follows it.
var parameter = regexp.MustCompile(`^ *([A-Za-z0-9_-]+) *= *(?:"((?:[^"\\]|\\.)*)"|([^" ,\\]+)) *(?:,|$)`)

// parseChallenge reads a challenge of the scheme Bearer (RFC 9110 §11.6.1). The scope that it names is not ours to ask for.
func parseChallenge(header string) (realm *url.URL, service string, err error) {
	scheme, rest, _ := strings.Cut(header, " ")
	if len(header) > maxChallenge || !strings.EqualFold(scheme, "Bearer") {
		return nil, "", fmt.Errorf("a challenge of %d bytes, of scheme %.20q", len(header), scheme)
	}
	found := map[string]string{}
	for rest != "" {
		m := parameter.FindStringSubmatch(rest)
		if m == nil {
			return nil, "", fmt.Errorf("challenge %.200q", header)
		}
		name := strings.ToLower(m[1])
		if _, twice := found[name]; twice {
			return nil, "", fmt.Errorf("challenge %.200q: it has %s twice", header, name)
		}
		found[name] = escaped.ReplaceAllString(m[2], "$1") + m[3]
		rest = rest[len(m[0]):]
	}
	realm, err = url.Parse(found["realm"])
	if err != nil || realm.Scheme != "http" && realm.Scheme != "https" || realm.Host == "" || realm.User != nil {
		return nil, "", fmt.Errorf("challenge %.200q: its realm is no address", header)
	}
	return realm, found["service"], nil
}

var escaped = regexp.MustCompile(`\\(.)`)

// parseToken reads the answer that a token is in. It has more fields, which are not ours to judge.
func parseToken(answer []byte) (string, error) {
	var t struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if len(answer) > maxAnswer {
		return "", fmt.Errorf("a token's answer has more than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(answer, &t); err != nil {
		return "", fmt.Errorf("a token's answer: %w", err)
	}
	if t.Token == "" {
		t.Token = t.Access
	}
	if len(t.Token) > maxToken || !tokenForm.MatchString(t.Token) {
		return "", fmt.Errorf("a token of %d bytes, want one of RFC 6750, up to %d", len(t.Token), maxToken)
	}
	return t.Token, nil
}

// tokenForm is that of a bearer token (RFC 6750 §2.1).
var tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)
