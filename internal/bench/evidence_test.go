package bench

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/big"
	"os"
	"testing"

	pb "github.com/google/go-tpm-tools/proto/attest"
	tpmpb "github.com/google/go-tpm-tools/proto/tpm"
	"github.com/google/go-tpm-tools/server"
	legacy "github.com/google/go-tpm/legacy/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// recordedBoot is the log of a real boot with Secure Boot on.
const recordedBoot = "../../pcrs/testdata/ovmf-2025.02-secureboot.log"

const nodeConfig = `{"version":1,"clusterRoot":"c100000000000000000000000000000000000000000000000000000000000000","stateDisk":{"serial":"state"}}`

// quotes is how many pieces of evidence are made; an exchange can be verified only once.
const quotes = 201

// BenchmarkEvidence verifies quotes of a TPM into which a recorded boot was replayed, with the log of that boot, and
// compares with go-tpm-tools' verifier on the same quotes, key and log. Ours also judges the registers by a policy.
func BenchmarkEvidence(b *testing.B) {
	n := newNode(b)
	var evidence []*evidence
	for range quotes {
		evidence = append(evidence, n.prove(b))
	}
	what := comparison{
		what: "verify quote, event log and policy", target: 5,
		peer: fmt.Sprintf("go-tpm-tools' VerifyAttestation of the same quote and log (%d events), which also reads the key and the state of the boot", len(n.log.Events)),
	}
	compare(b, what, quotes, func(i int) { n.verify(b, evidence[i]) }, func(i int) { n.peerVerifies(b, evidence[i]) })
	limit := comparison{
		what: "… beside the lower bound", peer: fmt.Sprintf("one P-256 signature, and one SHA-256 pass over the log's %d bytes", len(n.rawLog)),
		target: 1.5, atMost: true,
	}
	again := func() {
		for i := range evidence {
			evidence[i] = n.prove(b) // An exchange can be verified only once.
		}
	}
	again()
	compare(b, limit, quotes, func(i int) { n.verify(b, evidence[i]) }, func(i int) { n.lowerBound(b, evidence[i]) })
	again()
	ours, peers := mallocs(quotes, func(i int) { n.verify(b, evidence[i]) }), mallocs(quotes, func(i int) { n.peerVerifies(b, evidence[i]) })
	goals = append(goals, goal{
		what: "allocations of a verification of quote, event log and policy", target: "fewer than the peer's",
		measured: fmt.Sprintf("%d, go-tpm-tools' %d", ours, peers), met: ours < peers,
	})
}

// node is a machine that booted as the log says, and what is expected of it.
type node struct {
	prover *prover.Prover
	rawLog []byte
	log    pcrs.Log
	ak     *ecdsa.PublicKey
	// references are what a verifier of many nodes makes once.
	references measurements.References
}

// evidence is one answer to one challenge.
type evidence struct {
	exchange    *verifier.Exchange
	proof       *wire.Proof
	binding     attest.Binding
	attestation *pb.Attestation // the same, as the peer takes it
	r, s        *big.Int
}

func newNode(b *testing.B) *node {
	b.Helper()
	raw, err := os.ReadFile(recordedBoot)
	if err != nil {
		b.Fatal(err)
	}
	n := &node{rawLog: raw}
	if n.log, err = pcrs.ParseLog(raw); err != nil {
		b.Fatal(err)
	}
	tpm := tpmtest.New(b)
	tpm.Replay(b, n.log)
	tpm.Extend(b, attest.ConfigRegister, hullmark.ConfigEvent([]byte(nodeConfig)))
	if n.prover, err = prover.Open(tpm, hullmark.EKID{}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.prover.Close() })
	area, err := legacy.DecodePublic(n.prover.Identity().AKPublic)
	if err != nil {
		b.Fatal(err)
	}
	key, err := area.Key()
	if err != nil {
		b.Fatal(err)
	}
	n.ak = key.(*ecdsa.PublicKey)
	n.accept(b)
	return n
}

// accept makes a document of the boot and a policy that enforces all that a policy can.
func (n *node) accept(b *testing.B) {
	b.Helper()
	p := pcrs.Prediction{Registers: []pcrs.Register{0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14}}
	for _, e := range n.log.Events {
		if e.Type != pcrs.EvNoAction && e.Register < 15 {
			e.Origin = pcrs.Learned
			e.Digests = maps.Clone(e.Digests)
			delete(e.Digests, pcrs.SHA1)
			p.Log.Events = append(p.Log.Events, e)
		}
	}
	zero := make(pcrs.Digest, 32)
	d, err := measurements.New(measurements.Image{ID: "node", Version: "1", Disk: zero, RootHash: zero, UKI: zero, Stub: "257"}, measurements.Release{SVN: 1}, pcrs.Machine{}, p)
	if err != nil {
		b.Fatal(err)
	}
	id, err := d.Digest()
	if err != nil {
		b.Fatal(err)
	}
	policy := measurements.Policy{Version: 1, Documents: []measurements.Accepted{{Document: id, Enforce: []pcrs.Register{1, 5}}}}
	n.references = measurements.NewReferences(policy, []measurements.Document{d})
}

// prove runs the exchange up to the last message.
func (n *node) prove(b *testing.B) *evidence {
	b.Helper()
	identity, id := n.prover.Identity(), n.prover.Node()
	channelKey := make([]byte, attest.ChannelKeySize)
	hello, err := wire.EncodeHello(&wire.Hello{
		Version: attest.Version, EkPublic: identity.EKPublic, AkPublic: identity.AKPublic, NodeConfig: []byte(nodeConfig),
		Disk: wire.FromDiskClaim(hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{7}}),
	})
	if err != nil {
		b.Fatal(err)
	}
	e := &evidence{}
	if e.exchange, err = verifier.Begin(hello, channelKey, verifier.Demands{Roots: []hullmark.ClusterRoot{{0xc1}}, Anchor: verifier.Anchor{EKID: &id}}); err != nil {
		b.Fatal(err)
	}
	credential, encrypted, err := e.exchange.Challenge(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	secret, err := n.prover.Activate(credential, encrypted)
	if err != nil {
		b.Fatal(err)
	}
	if e.binding, err = attest.Bind(channelKey, secret, hello); err != nil {
		b.Fatal(err)
	}
	proven, err := n.prover.Prove(e.binding)
	if err != nil {
		b.Fatal(err)
	}
	e.proof = &wire.Proof{Quoted: proven.Quoted, Signature: proven.Signature, PcrValues: proven.Registers.Bytes(), EventLog: n.rawLog}
	values := map[uint32][]byte{}
	for _, pcr := range attest.Quoted() {
		values[uint32(pcr)] = proven.Registers[pcr][:]
	}
	signature, err := legacy.DecodeSignature(bytes.NewBuffer(proven.Signature))
	if err != nil {
		b.Fatal(err)
	}
	e.r, e.s = signature.ECC.R, signature.ECC.S
	e.attestation = &pb.Attestation{
		AkPub: n.prover.Identity().AKPublic, EventLog: n.rawLog,
		Quotes: []*tpmpb.Quote{{
			Quote: e.proof.GetQuoted(), RawSig: e.proof.GetSignature(), Pcrs: &tpmpb.PCRs{Hash: tpmpb.HashAlgo_SHA256, Pcrs: values},
		}},
	}
	return e
}

// verify holds the quote to the exchange, the log to the quote, and the registers to the policy.
func (n *node) verify(b *testing.B, e *evidence) {
	claims, err := e.exchange.Verify(e.proof)
	if err != nil {
		b.Fatal(err)
	}
	log, err := pcrs.ParseLog(claims.EventLog, pcrs.SHA256)
	if err != nil {
		b.Fatal(err)
	}
	replayed, err := log.Replay(pcrs.SHA256)
	if err != nil {
		b.Fatal(err)
	}
	measured := make(pcrs.Values, pcrs.RegisterCount)
	for _, pcr := range attest.Quoted() {
		r := pcrs.Register(pcr)
		measured[r] = claims.Registers[pcr][:]
		if r != attest.ConfigRegister && !bytes.Equal(replayed[r], measured[r]) {
			b.Fatalf("%v: the log does not replay to the quoted value", r)
		}
	}
	if v := n.references.Judge(pcrs.SHA256, measured); !v.Accepted() {
		b.Fatal(v)
	}
}

// lowerBound does what no verifier can do without: it checks the signature, of numbers that are read already, and hashes the log.
func (n *node) lowerBound(b *testing.B, e *evidence) {
	digest := sha256.Sum256(e.proof.GetQuoted())
	if !ecdsa.Verify(n.ak, digest[:], e.r, e.s) {
		b.Fatal("the signature is wrong")
	}
	if log := sha256.Sum256(n.rawLog); log == [sha256.Size]byte{} { // It is looked at, or it might not be computed.
		b.Fatal("the log's hash is zero")
	}
}

// peerVerifies has go-tpm-tools hold the quote to the nonce and the log to the quote.
func (n *node) peerVerifies(b *testing.B, e *evidence) {
	options := server.VerifyOpts{Nonce: e.binding[:], TrustedAKs: []crypto.PublicKey{n.ak}, HashAlgo: legacy.AlgSHA256}
	if _, err := server.VerifyAttestation(e.attestation, options); err != nil {
		b.Fatal(err)
	}
}
