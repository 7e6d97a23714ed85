package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark/internal/hcltest"
	"github.com/hullmark/hullmark/internal/sevtest"
	"github.com/hullmark/hullmark/internal/tdxtest"
)

const (
	// product is that of the chip, and signature that of the processors that QEMU gives a guest as -cpu EPYC-v4 (CPUID 1, EAX).
	product   = "Genoa"
	signature = 0x800f12
	// guestSVN is the version that the paravisor's signer gave it.
	guestSVN = 5
	// debugging lets the host read the guest's memory (AMD 56860, guest policy, bit 19).
	debugging = 1 << 19
	// patience bounds an exchange with one machine.
	patience = time.Minute
	// maxAsked bounds what a machine or a guest says, in bytes.
	maxAsked = 8 << 10
)

// idKey is the digest of the key that signed the paravisor.
var idKey = [48]byte{0x48, 0x75, 0x6c, 0x6c}

// way is a way of starting a machine. The zero value is an honest SNP host.
type way struct {
	// tdx is an Intel.
	tdx bool
	// debug starts machines that their host may read.
	debug bool
	// others binds the keys of another machine's TPM.
	others bool
	// unsigned leaves out who signed the paravisor: a guest that makes its own claims.
	unsigned bool
}

// ways are the sockets by their names.
var ways = map[string]way{
	"azure-snp": {}, "azure-tdx": {tdx: true}, "debug": {debug: true}, "others-claims": {others: true}, "own-claims": {unsigned: true},
}

// processor holds the keys.
type processor struct {
	amd   *sevtest.AMD
	chip  *sevtest.Chip
	intel *tdxtest.Intel
}

func newProcessor() *processor {
	amd := sevtest.NewAt(maker{}, product, time.Now())
	return &processor{amd: amd, chip: amd.Chip(sevtest.TCB{10, 2, 0, 0, 0, 0, 27, 87}, ""), intel: tdxtest.NewAt(maker{}, true, time.Now())}
}

// demands are what a policy says of each platform, by the names of their files. What is measured is not there: the operator knows it.
func (p *processor) demands() map[string]any {
	answers := p.intel.Answers()
	return map[string]any{
		"azure-snp.json": map[string]any{
			"idKeys": []string{fmt.Sprintf("%x", idKey)}, "minimumGuestSVN": guestSVN, "crls": [][]byte{p.amd.CRL(false)},
			"testRoots": []map[string]any{{"product": product, "key": "vcek", "bundle": p.amd.Bundle()}},
		},
		"azure-tdx.json": map[string]any{
			"mrtds": []string{fmt.Sprintf("%x", tdxtest.Good().MRTD)}, "allowSMT": true, "testRoots": [][]byte{p.intel.Root()},
			"collaterals": []map[string][]byte{{
				"tcbInfo": answers.TCBInfo, "qeIdentity": answers.QEIdentity, "tcbInfoChain": answers.Chain, "qeIdentityChain": answers.Chain,
				"pckCRL": answers.PCKCRL, "rootCRL": answers.RootCRL,
			}},
		},
	}
}

// started is what a machine says of itself before it starts.
type started struct {
	// Firmware is the path of the firmware's code, and Processors is how many there are.
	Firmware   string `json:"firmware"`
	Processors int    `json:"processors"`
	// TPM is the socket of its TPM.
	TPM string `json:"tpm"`
}

// serve answers machines until the listener is closed.
func (p *processor) serve(listener net.Listener, w way) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		answer := map[string]string{}
		if err := p.start(conn, w); err != nil {
			answer["error"] = err.Error()
		}
		if err := json.NewEncoder(conn).Encode(answer); err != nil {
			fmt.Fprintln(os.Stderr, "secure processor:", err)
		}
		conn.Close()
	}
}

// start measures a machine and leaves its report in its TPM.
func (p *processor) start(conn net.Conn, w way) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var machine started
	if err := json.NewDecoder(io.LimitReader(conn, maxAsked)).Decode(&machine); err != nil {
		return err
	}
	firmware, err := os.ReadFile(machine.Firmware)
	if err != nil {
		return err
	}
	digest, err := launchOf(firmware, machine.Processors)
	if err != nil {
		return err
	}
	link, err := net.Dial("unix", machine.TPM)
	if err != nil {
		return err
	}
	defer link.Close()
	tpm := transport.FromReadWriter(link)
	ek, err := readEK(tpm)
	if err != nil {
		return err
	}
	if err := putReport(tpm, p.report(w, digest, ek)); err != nil {
		return err
	}
	_, err = tpm2.Shutdown{ShutdownType: tpm2.TPMSUClear}.Execute(tpm)
	return err
}

// report makes what a paravisor keeps in the TPM. swtpm has room for the claims of one key.
func (p *processor) report(w way, digest measurement, ek []byte) []byte {
	if w.others {
		ek = anotherEK()
	}
	claims := hcltest.Claims(maker{}, ek, nil)
	if w.tdx {
		return hcltest.Frame(hcltest.TDX, tdReport(hcltest.Bound(claims)), claims)
	}
	guest := sevtest.Good(product)
	guest.Measurement, guest.ReportData, guest.IDKey, guest.GuestSVN = digest, hcltest.Bound(claims), idKey, guestSVN
	if w.debug {
		guest.Policy |= debugging
	}
	if w.unsigned {
		guest.IDKey = [48]byte{}
	}
	return hcltest.Frame(hcltest.SNP, p.chip.Report(guest), claims)
}

// anotherEK is the endorsement key of a TPM that is not here.
func anotherEK() []byte {
	modulus := make([]byte, 256)
	if _, err := rand.Read(modulus); err != nil {
		maker{}.Fatal(err)
	}
	public := tpm2.RSAEKTemplate
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus})
	return tpm2.Marshal(public)
}

// tdReport is a TDREPORT as far as the quoting service reads it: REPORTMACSTRUCT has the report data at byte 128.
func tdReport(data [64]byte) []byte {
	report := make([]byte, 1024)
	report[0] = 0x81
	copy(report[128:], data[:])
	return report
}

// certification answers with the certificates of the chip.
func (p *processor) certification(w http.ResponseWriter, _ *http.Request) {
	key := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.chip.Certificate})
	reply(w, map[string]string{"vcekCert": string(key), "certificateChain": string(p.amd.Bundle()), "tcbm": fmt.Sprintf("%016X", binary.LittleEndian.Uint64(p.chip.TCB[:]))})
}

// quote signs a TDREPORT.
func (p *processor) quote(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Report string `json:"report"`
	}
	err := json.NewDecoder(io.LimitReader(r.Body, maxAsked)).Decode(&asked)
	report, wrong := base64.RawURLEncoding.DecodeString(asked.Report)
	if err != nil || wrong != nil || len(report) != 1024 || !bytes.HasPrefix(report, []byte{0x81}) {
		http.Error(w, "no TDREPORT", http.StatusBadRequest)
		return
	}
	guest := tdxtest.Good()
	copy(guest.ReportData[:], report[128:])
	reply(w, map[string]string{"quote": base64.RawURLEncoding.EncodeToString(p.intel.Quote(guest))})
}

func reply(w http.ResponseWriter, content map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(content) // The guest went away.
}
