package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
)

// maxFile bounds a file that is read at a scrape, and maxMetrics the join service's metrics, in bytes.
const (
	maxFile    = 1 << 20
	maxMetrics = 4 << 20
)

// handler shows the node's metrics, and below another path those of the join service, which listens on the loopback alone.
func (o options) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(node{o}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /metrics/join-service", o.joinService)
	return mux
}

// joinService hands on what this node's join service says.
func (o options) joinService(w http.ResponseWriter, r *http.Request) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, o.service, nil)
	if err != nil {
		http.Error(w, "join service", http.StatusInternalServerError)
		return
	}
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		http.Error(w, "this node has no join service that runs", http.StatusNotFound)
		return
	}
	defer answer.Body.Close()
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, io.LimitReader(answer.Body, maxMetrics))
}

// node collects, at each scrape, what the files of its node say.
type node struct{ options }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hullmark_"+name, help, labels, nil)
}

var (
	ready       = describe("node_ready", "1 if this boot came to Ready, and nothing has stopped the node since.")
	standing    = describe("node_condition", "1 for the condition that stands against the node, by its code (docs/conditions.md).", "code", "step")
	runs        = describe("node_release_info", "1 for the release that runs: the root hash that was measured at this boot.", "root_hash", "slot")
	trial       = describe("node_update_phase", "1 for how far the node is with another release.", "phase", "document")
	epoch       = describe("node_epoch", "The number of the state disk, which each boot raises, and a Ready node every few minutes.")
	ends        = describe("node_certificate_expiration_timestamp_seconds", "When a certificate of the kubelet ends, in Unix time.", "certificate")
	size        = describe("state_disk_size_bytes", "Size of the state disk's file system.")
	available   = describe("state_disk_available_bytes", "What is free of it.")
	sent        = describe("journal_sent_total", "Entries of the journal that the collector's machine has acknowledged, since the forwarder's start.")
	dropped     = describe("journal_dropped_total", "Entries that the journal gave up before they could be sent, since the forwarder's start.")
	newest      = describe("journal_newest_timestamp_seconds", "Time of the newest entry that was sent, in Unix time; 0 before the first.")
	unforwarded = describe("journal_condition", "1 for why the journal is not being sent, by its code; none while it is.", "code")
)

// Describe says that what is collected differs: of some nodes there is less.
func (node) Describe(chan<- *prometheus.Desc) {}

// Collect reads it. What is not there is not shown.
func (n node) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	fail := func(d *prometheus.Desc, err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			to <- prometheus.NewInvalidMetric(d, err)
		}
	}
	fail(ready, n.status(gauge))
	fail(sent, n.journal(to, gauge))
	for name, file := range map[string]string{"kubelet-client": clientFile, "kubelet-serving": servingFile} {
		certificate, err := firstCertificate(filepath.Join(n.credentials, file))
		if err == nil {
			gauge(ends, float64(certificate.NotAfter.Unix()), name)
		}
		fail(ends, err)
	}
	var s unix.Statfs_t
	err := unix.Statfs(n.disk, &s)
	if err == nil {
		gauge(size, float64(s.Blocks)*float64(s.Bsize))
		gauge(available, float64(s.Bavail)*float64(s.Bsize))
	}
	fail(size, err)
}

// document is what is shown of the agent's status document (firstboot.Document).
type document struct {
	Ready     bool                   `json:"ready"`
	Epoch     uint64                 `json:"epoch"`
	Condition *hullmark.Condition    `json:"condition"`
	Update    *hullmark.UpdateStatus `json:"update"`
}

// status shows the agent's status document.
func (n node) status(gauge func(*prometheus.Desc, float64, ...string)) error {
	text, err := readBounded(n.options.status)
	if err != nil {
		return err
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	is := 0.
	if d.Ready {
		is = 1
	}
	gauge(ready, is)
	if d.Epoch > 0 {
		gauge(epoch, float64(d.Epoch))
	}
	if d.Condition != nil {
		gauge(standing, 1, d.Condition.Code, d.Condition.Step)
	}
	if u := d.Update; u != nil {
		gauge(runs, 1, u.Release().String(), u.Running)
		document := ""
		if u.Document != (hullmark.DocumentID{}) {
			document = u.Document.String()
		}
		gauge(trial, 1, string(u.Phase), document)
	}
	return nil
}

// journal shows how the journal's forwarder is getting on.
func (n node) journal(to chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) error {
	text, err := readBounded(n.forward)
	if err != nil {
		return err
	}
	f, err := hullmark.ParseForward(text)
	if err != nil {
		return err
	}
	to <- prometheus.MustNewConstMetric(sent, prometheus.CounterValue, float64(f.Sent))
	to <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(f.Dropped))
	gauge(newest, float64(f.Newest))
	if f.Condition != nil {
		gauge(unforwarded, 1, f.Condition.Code)
	}
	return nil
}

func readBounded(file string) ([]byte, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, maxFile))
}
