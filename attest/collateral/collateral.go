// Package collateral fetches what processors' makers say of their platforms, so that verifiers have it without a network: Intel's
// collateral of TDX, and AMD's lists of revoked keys. Nothing of it is believed until a verifier has checked its signatures.
package collateral

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
)

// Where the makers' services are. A cache of one's own answers to the same paths.
const (
	IntelService = "https://api.trustedservices.intel.com"
	IntelRootCRL = "https://certificates.trustedservices.intel.com/IntelSGXRootCA.der"
	AMDService   = "https://kdsintf.amd.com"
)

const (
	// maxAnswer bounds an answer, in bytes, and patience each request.
	maxAnswer = 512 << 10
	patience  = time.Minute
)

// TDX fetches the collateral of a model of platforms, an FMSPC of 6 bytes, from a service, and the root's list from an address of
// its own.
func TDX(ctx context.Context, service, rootCRL string, fmspc []byte) (c tdx.Collateral, err error) {
	if len(fmspc) != 6 {
		return c, fmt.Errorf("FMSPC of %d bytes, want 6", len(fmspc))
	}
	for _, part := range []struct {
		address string
		into    *[]byte
		header  string
		chain   *[]byte
	}{
		{service + "/tdx/certification/v4/tcb?fmspc=" + hex.EncodeToString(fmspc), &c.TCBInfo, "TCB-Info-Issuer-Chain", &c.TCBInfoChain},
		{service + "/tdx/certification/v4/qe/identity", &c.QEIdentity, "SGX-Enclave-Identity-Issuer-Chain", &c.QEIdentityChain},
		{service + "/sgx/certification/v4/pckcrl?ca=platform&encoding=der", &c.PCKCRL, "", nil},
		{rootCRL, &c.RootCRL, "", nil},
	} {
		answer, header, err := get(ctx, part.address)
		if err != nil {
			return c, err
		}
		*part.into = answer
		if part.chain == nil {
			continue
		}
		chain, err := url.QueryUnescape(header.Get(part.header))
		if err != nil || chain == "" {
			return c, fmt.Errorf("%s: no chain of certificates in header %s", part.address, part.header)
		}
		*part.chain = []byte(chain)
	}
	return c, nil
}

// SNP fetches AMD's list of revoked keys of a product, in DER.
func SNP(ctx context.Context, service, product string, key snp.Key) ([]byte, error) {
	crl, _, err := get(ctx, service+"/"+string(key)+"/v1/"+url.PathEscape(product)+"/crl")
	return crl, err
}

func get(ctx context.Context, address string) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s: %s", address, answer.Status)
	}
	content, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err == nil && len(content) > maxAnswer {
		err = errors.New("too long an answer")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", address, err)
	}
	return content, answer.Header, nil
}
