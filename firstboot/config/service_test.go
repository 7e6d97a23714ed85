package config

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

const text = `{"version": 1}`

// fakes answer as the clouds' services do, and only to who asks as those want to be asked.
func fake(t *testing.T, cloud string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(pattern, header, value, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(header) != value {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = w.Write([]byte(body))
		})
	}
	switch cloud {
	case "azure":
		answer("GET /metadata/instance/compute/userData", "Metadata", "true", base64.StdEncoding.EncodeToString([]byte(text)))
	case "gcp":
		answer("GET /computeMetadata/v1/instance/attributes/hullmark-config", "Metadata-Flavor", "Google", text)
	case "aws":
		answer("PUT /latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60", "a token")
		answer("GET /latest/user-data", "X-aws-ec2-metadata-token", "a token", text)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// at is a cloud's source, asked at another address.
func at(t *testing.T, cloud, address string) Source {
	t.Helper()
	s, err := Named(cloud, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.service.URL = strings.Replace(s.service.URL, "http://169.254.169.254", address, 1)
	s.service.Token = strings.Replace(s.service.Token, "http://169.254.169.254", address, 1)
	s.Cache = filepath.Join(t.TempDir(), "config.json")
	return s
}

func TestServices(t *testing.T) {
	for cloud := range services {
		server := fake(t, cloud)
		s := at(t, cloud, server.URL)
		if got, err := s.Bytes(t.Context()); err != nil || string(got) != text {
			t.Errorf("%s: %q, %v", cloud, got, err)
		}
		server.Close()
		if got, err := s.Bytes(t.Context()); err != nil || string(got) != text {
			t.Errorf("%s: asked a second time in one boot: %q, %v", cloud, got, err)
		}
	}
}

func TestServiceConditions(t *testing.T) {
	reply := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://elsewhere.invalid/")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	cut := func(body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	for name, c := range map[string]struct{ cloud, address, code, got string }{
		"none set":      {"gcp", reply(404, "not found"), "config-missing", "nothing"},
		"empty":         {"gcp", reply(200, ""), "config-missing", "nothing"},
		"refused":       {"aws", reply(403, ""), "config-missing", "403"},
		"sent on":       {"gcp", reply(302, ""), "config-missing", "302"},
		"nobody there":  {"azure", "http://127.0.0.1:1", "config-missing", "refused"},
		"cut off":       {"gcp", cut(text), "config-missing", "EOF"},
		"cut in base64": {"azure", cut("eyJ2"), "config-missing", "EOF"},
		"half a quad":   {"azure", cut("eyJ2Z"), "config-missing", "EOF"},
		"not in base64": {"azure", reply(200, text), "config-invalid", ""},
		"too long":      {"gcp", reply(200, strings.Repeat(" ", hullmark.MaxNodeConfig+1)), "config-invalid", ""},
		"endless":       {"azure", reply(200, strings.Repeat("\n", 1<<20)), "config-invalid", ""},
	} {
		_, err := at(t, c.cloud, c.address).Bytes(t.Context())
		var condition *hullmark.Condition
		if !errors.As(err, &condition) || condition.Code != c.code || !strings.Contains(condition.Got, c.got) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
}

func TestNamed(t *testing.T) {
	if s, err := Named("", nil); err != nil || s.File != firmwareFile {
		t.Errorf("an image that says nothing: %+v, %v", s, err)
	}
	if _, err := Named("floppy", nil); err == nil || !strings.Contains(err.Error(), "floppy") {
		t.Errorf("an unknown source: %v", err)
	}
}
