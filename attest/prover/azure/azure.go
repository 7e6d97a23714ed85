// Package azure gathers the evidence of a confidential machine on Azure: what its paravisor keeps in the TPM, and what the host's
// metadata service adds, certificates or a quote. Nothing of it is believed here, and nothing depends on it: whoever withholds it
// gets a machine that shows no more than its TPM.
package azure

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/prover"
)

const (
	// index is where the paravisor keeps its report (openvmm, tpm_device: TPM_NV_INDEX_ATTESTATION_REPORT).
	index tpm2.TPMHandle = 0x01400001
	// maxReport bounds what is read there, and maxAnswer an answer of the service, in bytes.
	maxReport = 8 << 10
	maxAnswer = 64 << 10
	// hardwareAt is where the hardware's report begins, and typeAt says of which kind it is.
	hardwareAt, tdReportSize = 32, 1024
	typeAt                   = 32 + 1184 + 8
	typeSNP, typeTDX         = 2, 4
	// patience bounds each request.
	patience = 10 * time.Second
	// maxCertificates bounds how many are sent on.
	maxCertificates = 4
)

// Host is the metadata service.
type Host struct {
	// URL is where it is reached; empty is the address that it has on Azure.
	URL string
}

// address is that of Azure's metadata service, from inside of a machine.
const address = "http://169.254.169.254"

// Evidence returns a machine's evidence; nil if its TPM has no paravisor's report.
func (h Host) Evidence(ctx context.Context, tpm transport.TPM) (*prover.Platform, error) {
	report, err := prover.ReadIndex(tpm, index, maxReport)
	if err != nil {
		return nil, fmt.Errorf("paravisor's report: %w", err)
	}
	if report == nil {
		return nil, nil
	}
	if len(report) < typeAt+4 {
		return nil, fmt.Errorf("paravisor's report: %d bytes", len(report))
	}
	p := &prover.Platform{Report: report}
	switch kind := binary.LittleEndian.Uint32(report[typeAt:]); kind {
	case typeSNP:
		p.Kind = hullmark.PlatformAzureSNP
		p.Certificates, err = h.certificates(ctx)
	case typeTDX:
		p.Kind = hullmark.PlatformAzureTDX
		p.Quote, err = h.quote(ctx, report[hardwareAt:][:tdReportSize])
	default:
		err = fmt.Errorf("paravisor's report: hardware of type %d is not known", kind)
	}
	return p, err
}

// certificates asks for those of the chip's report key.
func (h Host) certificates(ctx context.Context) (certificates [][]byte, err error) {
	var answer struct {
		Key   string `json:"vcekCert"`
		Chain string `json:"certificateChain"`
	}
	if err := h.ask(ctx, http.MethodGet, "/metadata/THIM/amd/certification", nil, &answer); err != nil {
		return nil, err
	}
	for rest := []byte(answer.Key + "\n" + answer.Chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if certificates = append(certificates, block.Bytes); len(certificates) > maxCertificates {
			return nil, fmt.Errorf("metadata service: more than %d certificates", maxCertificates)
		}
	}
	if len(certificates) == 0 {
		return nil, errors.New("metadata service: no certificate in its answer")
	}
	return certificates, nil
}

// quote has the host's quoting enclave sign a TDREPORT.
func (h Host) quote(ctx context.Context, report []byte) ([]byte, error) {
	body, err := json.Marshal(map[string]string{"report": base64.RawURLEncoding.EncodeToString(report)})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Quote string `json:"quote"`
	}
	if err := h.ask(ctx, http.MethodPost, "/acc/tdquote", body, &answer); err != nil {
		return nil, err
	}
	quote, err := base64.RawURLEncoding.DecodeString(answer.Quote)
	if err != nil {
		return nil, fmt.Errorf("metadata service: quote: %w", err)
	}
	return quote, nil
}

// ask makes one request, by no proxy and to no other place.
func (h Host) ask(ctx context.Context, method, path string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	url := h.URL
	if url == "" {
		url = address
	}
	request, err := http.NewRequestWithContext(ctx, method, url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Metadata", "true")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it redirects") },
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("metadata service: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("metadata service: %s: %w", path, err)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("metadata service: %s: %s", path, answer.Status)
	case len(text) > maxAnswer:
		return fmt.Errorf("metadata service: %s: more than %d bytes", path, maxAnswer)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("metadata service: %s: %w", path, err)
	}
	return nil
}
