package config

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
)

// service is a cloud's instance metadata service, which a virtual machine asks over HTTP. What it says comes from the host,
// like everything that a configuration is read from.
type service struct {
	// URL has the configuration, as it is or (Base64) in base64, RFC 4648 §4.
	URL    string
	Base64 bool
	// Header and Value are the header without which it does not answer: so no page that a browser shows can ask it. If Token is
	// set, the value is what that URL answers to PUT instead, where a session begins.
	Header, Value string
	Token         string
}

// The services by the name of their cloud. The address is link-local and the same in all of them.
var services = map[string]service{
	// Azure Instance Metadata Service, "Get user data".
	"azure": {
		URL: "http://169.254.169.254/metadata/instance/compute/userData?api-version=2021-01-01&format=text", Base64: true,
		Header: "Metadata", Value: "true",
	},
	// Compute Engine, "About VM metadata"; the attribute is one that the machine's owner sets.
	"gcp": {
		URL:    "http://169.254.169.254/computeMetadata/v1/instance/attributes/hullmark-config",
		Header: "Metadata-Flavor", Value: "Google",
	},
	// Amazon EC2 User Guide, "Use the Instance Metadata Service" (version 2).
	"aws": {
		URL: "http://169.254.169.254/latest/user-data", Token: "http://169.254.169.254/latest/api/token",
		Header: "X-aws-ec2-metadata-token",
	},
}

// serviceTimeout bounds one question; the agent asks again.
const serviceTimeout = 10 * time.Second

// maxAnswer is the longest answer, in bytes: base64 takes a third more than what it holds, and line feeds.
const maxAnswer = 2 * hullmark.MaxNodeConfig

// errUnanswered says that the service gave no answer that has a configuration or says that there is none.
var errUnanswered = errors.New("the metadata service does not answer")

// fetch asks for the configuration. It is fs.ErrNotExist if the service says that there is none, and errUnanswered if it cannot be asked.
func (s service) fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	if s.Token != "" {
		token, err := ask(ctx, http.MethodPut, s.Token, "X-aws-ec2-metadata-token-ttl-seconds", "60")
		if err != nil {
			return nil, err
		}
		s.Value = string(token)
	}
	config, err := ask(ctx, http.MethodGet, s.URL, s.Header, s.Value)
	if err != nil {
		return nil, err
	}
	if s.Base64 {
		if config, err = base64.StdEncoding.DecodeString(string(config)); err != nil {
			return nil, Invalid(fmt.Errorf("user data is not in base64: %w", err))
		}
	}
	if len(config) == 0 {
		return nil, fs.ErrNotExist
	}
	return limited(config)
}

// ask sends one request past any proxy, follows nobody elsewhere, and reads the whole answer.
func ask(ctx context.Context, method, url, header, value string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	request.Header.Set(header, strings.TrimSpace(value))
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, fs.ErrNotExist
	default:
		return nil, fmt.Errorf("%w: it says %s", errUnanswered, answer.Status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	if len(body) > maxAnswer {
		return nil, Invalid(fmt.Errorf("%s: more than %d bytes", url, maxAnswer))
	}
	return body, nil
}
