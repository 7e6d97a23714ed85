package collateral_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/attest/collateral"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/tdxtest"
)

func TestTDX(t *testing.T) {
	intel := tdxtest.New(t, false)
	a := intel.Answers()
	want := tdx.Collateral{TCBInfo: a.TCBInfo, QEIdentity: a.QEIdentity, TCBInfoChain: a.Chain, QEIdentityChain: a.Chain, PCKCRL: a.PCKCRL, RootCRL: a.RootCRL}
	mux := http.NewServeMux()
	answer := func(path, header string, content []byte) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if header != "" {
				w.Header().Set(header, url.QueryEscape(string(a.Chain)))
			}
			w.Write(content)
		})
	}
	answer("/tdx/certification/v4/tcb", "TCB-Info-Issuer-Chain", a.TCBInfo)
	answer("/tdx/certification/v4/qe/identity", "SGX-Enclave-Identity-Issuer-Chain", a.QEIdentity)
	answer("/sgx/certification/v4/pckcrl", "", a.PCKCRL)
	answer("/root.crl", "", a.RootCRL)
	answer("/vcek/v1/Genoa/crl", "", []byte("list"))
	answer("/long/vcek/v1/Genoa/crl", "", bytes.Repeat([]byte("l"), 1<<20))
	service := httptest.NewServer(mux)
	defer service.Close()
	got, err := collateral.TDX(t.Context(), service.URL, service.URL+"/root.crl", intel.FMSPC)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	about, err := (&tdx.Verifier{TestRoots: [][]byte{intel.Root()}}).About(got)
	if err != nil || !bytes.Equal(about.FMSPC, intel.FMSPC) || about.Evaluation != 20 || !about.Issued.Before(about.Next) {
		t.Errorf("%+v, %v", about, err)
	}
	if _, err := (&tdx.Verifier{}).About(got); err == nil || !strings.Contains(err.Error(), "not Intel's root") {
		t.Errorf("a stranger's collateral: %v", err)
	}
	if _, err := collateral.TDX(t.Context(), service.URL, service.URL+"/none", intel.FMSPC); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no list of the root's: %v", err)
	}
	if _, err := collateral.TDX(t.Context(), service.URL, service.URL, nil); err == nil {
		t.Error("no model: fetched")
	}
	if list, err := collateral.SNP(t.Context(), service.URL, snp.Genoa, snp.VCEK); err != nil || string(list) != "list" {
		t.Errorf("%q, %v", list, err)
	}
	if _, err := collateral.SNP(t.Context(), service.URL+"/long", snp.Genoa, snp.VCEK); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a long answer: %v", err)
	}
}
