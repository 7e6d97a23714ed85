package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what the service counts.
type metrics struct {
	registry            *prometheus.Registry
	exchanges, requests *prometheus.CounterVec
}

// newMetrics makes the metrics; the functions are read at each scrape.
func newMetrics(inFlight, policyVersion, missedRotations, serverUntil func() float64) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		exchanges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hullmark_exchanges_total", Help: "Exchanges that ended, by ready, node-failed, stream-ended, superseded or the code of the condition that ended them.",
		}, []string{"outcome"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hullmark_certificate_requests_total", Help: "Decisions over kubelets' certificate requests, by outcome.",
		}, []string{"outcome"}),
	}
	m.registry.MustRegister(
		m.exchanges, m.requests,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "hullmark_exchanges_in_flight", Help: "Exchanges under way."}, inFlight),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "hullmark_policy_version", Help: "Version of the policy in force."}, policyVersion),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "hullmark_missed_rotations", Help: "Exchanges of keys since this control plane was given its own; above 0 it wants a reboot."}, missedRotations),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hullmark_apiserver_certificate_expiration_timestamp_seconds",
			Help: "When the certificate of this node's API server ends, in Unix time; a boot makes another once it is four months old. 0 before the first connection.",
		}, serverUntil),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// server returns the server of /metrics, /healthz and, if it is wanted, Go's profiles, for loopback only: all are public among
// the node's own processes.
func (m *metrics) server(profile bool) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	if profile {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	}
	return &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10}
}

// serveHTTP serves until the server is closed.
func serveHTTP(server *http.Server, listener net.Listener) error {
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
