package step

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/hullmark/hullmark"
)

// Limits of an API server's metrics.
const (
	// MaxMetrics is how many bytes of them are read: a server of a large cluster has some tens of megabytes.
	MaxMetrics = 256 << 20
	maxLine    = 64 << 10
	maxAPIs    = 1024
	maxAPIName = 253
)

// deprecated is the metric that has a sample for each deprecated API that was asked for (k8s.io/apiserver, pkg/endpoints/metrics).
const deprecated = "apiserver_requested_deprecated_apis"

// API is a deprecated one that somebody has asked an API server for since it started.
type API struct {
	Group, Version, Resource, Subresource string
	// Removed is the minor release that no longer has it, such as 1.38; zero where none was named.
	Removed hullmark.Version
}

// String is VERSION/RESOURCE, with the group before it unless that is the core API's.
func (a API) String() string {
	text := a.Version + "/" + a.Resource
	if a.Group != "" {
		text = a.Group + "/" + text
	}
	if a.Subresource != "" {
		text += "/" + a.Subresource
	}
	return text
}

// RequestedAPIs reads, of an API server's metrics (Prometheus' text format, version 0.0.4), which deprecated APIs it was asked for.
func RequestedAPIs(metrics io.Reader) ([]API, error) {
	var all []API
	limited := &io.LimitedReader{R: metrics, N: MaxMetrics + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	for lines.Scan() {
		rest, ok := bytes.CutPrefix(lines.Bytes(), []byte(deprecated+"{"))
		if !ok {
			continue
		}
		api, err := parseAPI(string(rest))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", deprecated, err)
		}
		if slices.Contains(all, api) {
			continue
		}
		if all = append(all, api); len(all) > maxAPIs {
			return nil, fmt.Errorf("metric %s: more than %d APIs", deprecated, maxAPIs)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("metrics: more than %d bytes", MaxMetrics)
	}
	return all, nil
}

// label is one label of a sample, and what ends it. Backslashes, quotes and line feeds are escaped in values; no API's name has one.
var label = regexp.MustCompile(`^([a-z_]+)="([^"\\\n]*)"(?:,|(\} ))`)

// parseAPI reads the labels of a sample, after the brace.
func parseAPI(text string) (a API, err error) {
	fields := map[string]*string{"group": &a.Group, "version": &a.Version, "resource": &a.Resource, "subresource": &a.Subresource, "removed_release": new(string)}
	removed := fields["removed_release"]
	for ended := false; !ended; {
		m := label.FindStringSubmatch(text)
		if m == nil {
			return API{}, fmt.Errorf("want labels, got %.80q", text)
		}
		field, known := fields[m[1]]
		if !known || len(m[2]) > maxAPIName {
			return API{}, fmt.Errorf("label %.80q: unknown, there twice, or too long", m[1])
		}
		*field = m[2]
		delete(fields, m[1])
		text, ended = text[len(m[0]):], m[3] != ""
	}
	if a.Version == "" || a.Resource == "" {
		return API{}, errors.New("an API without version or resource")
	}
	if *removed != "" {
		a.Removed, err = hullmark.ParseVersion("v" + *removed + ".0")
	}
	return a, err
}

// RemovedAPIs refuses a step to a release that lacks APIs which were asked for.
func RemovedAPIs(requested []API, to hullmark.Version) error {
	var gone []string
	for _, a := range requested {
		if a.Removed.Known() && behind(a.Removed, to) >= 0 {
			gone = append(gone, a.String())
		}
	}
	if len(gone) == 0 {
		return nil
	}
	slices.SortFunc(gone, cmp.Compare[string])
	return &hullmark.Condition{
		Code: "apis-removed", Step: name, Title: "clients ask for APIs that the release no longer has", Expected: "none that Kubernetes " + to.Line() + " lacks", Got: brief(slices.Compact(gone)),
		Next: "find who asks (the audit log's annotation k8s.io/deprecated; metadata.managedFields) and have it use later versions; an API server forgets what it was asked for when it restarts",
	}
}
