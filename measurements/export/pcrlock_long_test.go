//go:build long

package export

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/hullmark/hullmark/internal/buildtest"
	"github.com/hullmark/hullmark/internal/toolstree"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// pcrlock runs systemd-pcrlock over the components of a document, on a machine whose TPM and log are those of the recorded boot.
type pcrlock struct {
	tree, socket string
}

// predict returns the registers that systemd-pcrlock computes from the components, and that it would protect: of these the
// components explain all of the log, and the log is what the TPM holds.
func (p pcrlock) predict(t *testing.T, d measurements.Document) map[pcrs.Bank]pcrs.Values {
	t.Helper()
	folder := t.TempDir()
	for _, f := range export(t, d, Pcrlock) {
		if err := os.WriteFile(filepath.Join(folder, f.Name), f.Content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := filepath.Abs(recorded + ".log")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"/usr/lib/systemd/systemd-pcrlock", "predict", "--json=short", "--components=/components"}
	for _, r := range d.Registers {
		args = append(args, "--pcr="+strconv.Itoa(int(r.Register)))
	}
	out, err := toolstree.Sandbox{
		Tree: p.tree,
		Binds: []toolstree.Bind{
			{Host: filepath.Dir(p.socket), Tree: "/tpm", Writable: true}, {Host: folder, Tree: "/components"}, {Host: log, Tree: "/firmware.log"},
		},
		// systemd's ENVIRONMENT.md says what these are. The log has SHA-1, too, but the TPM and the components have not: were
		// the banks not named, the log would be another than what the TPM holds, and no register be predicted.
		Env: map[string]string{
			"SYSTEMD_TPM2_DEVICE":           "swtpm:path=/tpm/" + filepath.Base(p.socket),
			"SYSTEMD_TPM2_HASH_ALGORITHMS":  "sha256:sha384:sha512",
			"SYSTEMD_MEASURE_LOG_FIRMWARE":  "/firmware.log",
			"SYSTEMD_MEASURE_LOG_USERSPACE": "/none",
		},
		Offline: true,
	}.Command(t.Context(), args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("systemd-pcrlock: %v\n%s", err, exit.Stderr)
	}
	if err != nil {
		t.Fatalf("%v (apt-get install bubblewrap)", err)
	}
	return readPrediction(t, out)
}

// readPrediction reads what systemd-pcrlock predict prints. It wants one value of each register: there is one variant of each component.
func readPrediction(t *testing.T, out []byte) map[pcrs.Bank]pcrs.Values {
	t.Helper()
	var predicted map[pcrs.Bank][]struct {
		Register int           `json:"pcr"`
		Values   []pcrs.Digest `json:"values"`
	}
	if err := json.Unmarshal(out, &predicted); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	values := map[pcrs.Bank]pcrs.Values{}
	for bank, registers := range predicted {
		for _, r := range registers {
			if len(r.Values) != 1 {
				t.Fatalf("PCR %d of %v: %d values, want one", r.Register, bank, len(r.Values))
			}
			put(values, bank, pcrs.Register(r.Register), r.Values[0])
		}
	}
	return values
}

func TestLongSystemdPcrlockComputesTheSame(t *testing.T) {
	log := readLog(t)
	p := pcrlock{tree: buildtest.Tools(t), socket: tpmtest.NewShared(t, func(tpm *tpmtest.TPM) { tpm.Replay(t, log) })}
	want := recordedRegisters(t)

	d := document(t)
	covered := slices.Sorted(maps.Keys(d.Values(pcrs.SHA256)))
	predicted := p.predict(t, d)
	for _, bank := range pcrs.PredictedBanks() {
		compare(t, bank, predicted[bank], want[bank], covered)
	}

	// Of another kernel's document, the register with the kernel is not explained, and all others are.
	other := readLog(t)
	for i, e := range other.Events {
		if e.Register == 4 && e.Type == pcrs.EvBootServicesApplication {
			other.Events[i].Digests = pcrs.DigestsOf([]byte("another kernel"), pcrs.PredictedBanks()...)
		}
	}
	predicted = p.predict(t, describe(t, other, covered...))
	covered = slices.DeleteFunc(covered, func(r pcrs.Register) bool { return r == 4 })
	for _, bank := range pcrs.PredictedBanks() {
		compare(t, bank, predicted[bank], want[bank], covered)
	}
}
