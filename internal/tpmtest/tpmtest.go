// Package tpmtest gives a test a TPM of its own: the emulator swtpm in a
// temporary folder, gone when the test ends.
package tpmtest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark/pcrs"
)

// patience is how long swtpm may take to open its socket.
const patience = 10 * time.Second

// TPM is a running emulator.
type TPM struct {
	transport.TPM
	// Socket is the path of the emulator's command socket; it serves one connection, which TPM holds.
	Socket string
	// CA is the file of the certificate that signed the EK's certificate, in
	// PEM; empty unless the TPM was made by NewCertified.
	CA string

	connection net.Conn
	process    *exec.Cmd
}

// New starts a TPM as a manufacturer's: SHA-256, SHA-384 and SHA-512 banks, no
// persistent keys, no certificates.
func New(t testing.TB) *TPM {
	t.Helper()
	state := shortDir(t)
	setup(t, state)
	return start(t, state)
}

// NewCertified starts a TPM with a persistent RSA-2048 EK and its certificate, from a CA made for this one TPM.
func NewCertified(t testing.TB) *TPM {
	t.Helper()
	state := shortDir(t)
	ca := configureCA(t, state)
	setup(t, state, "--config", filepath.Join(state, "setup.conf"), "--create-ek-cert")
	tpm := start(t, state)
	tpm.CA = ca
	return tpm
}

// NewShared starts a TPM that programs use one after another, after use has had it, and returns the path of its socket. Its
// control channel is at that path with the ending .ctrl, as tcti-swtpm wants it.
func NewShared(t *testing.T, use func(*TPM)) string {
	t.Helper()
	state := shortDir(t)
	setup(t, state)
	socket := filepath.Join(state, "s")
	// It must not end with a connection, so it is bound to this thread, which ends with the test, killed or not.
	runtime.LockOSThread()
	serve(t, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, state, socket, "--ctrl", "type=unixio,path="+socket+".ctrl")
	connection := dial(t, socket)
	defer func() { _ = connection.Close() }()
	use(&TPM{TPM: transport.FromReadWriteCloser(connection), Socket: socket})
	return socket
}

// shortDir is a temporary folder whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tpm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// setup manufactures the TPM's state.
func setup(t testing.TB, state string, args ...string) {
	t.Helper()
	args = append([]string{"--tpm2", "--tpmstate", state, "--pcr-banks", "sha256,sha384,sha512"}, args...)
	if os.Geteuid() == 0 {
		args = append(args, "--runas", "root") // It would become a user of its own, who cannot write here.
	}
	run(t, "swtpm_setup", args...)
}

// configureCA writes what swtpm_setup otherwise reads from /etc, and returns where the CA's certificate will be.
func configureCA(t testing.TB, state string) string {
	t.Helper()
	localca, err := exec.LookPath("swtpm_localca")
	if err != nil {
		t.Fatal("swtpm_localca is missing: apt-get install swtpm-tools")
	}
	ca := filepath.Join(state, "ca.pem")
	for name, content := range map[string]string{
		"setup.conf": "create_certs_tool = " + localca + "\ncreate_certs_tool_config = " + state + "/ca.conf\n" +
			"create_certs_tool_options = " + state + "/ca.options\n",
		"ca.conf": "statedir = " + state + "\nsigningkey = " + state + "/ca-key.pem\nissuercert = " + ca +
			"\ncertserial = " + state + "/serial\n",
		"ca.options": "--platform-manufacturer Hullmark\n--platform-version 1\n--platform-model test\n",
	} {
		if err := os.WriteFile(filepath.Join(state, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return ca
}

func run(t testing.TB, program string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s is missing: apt-get install swtpm swtpm-tools", program)
	}
	if output, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, output)
	}
}

// start runs the emulator until the test ends.
func start(t testing.TB, state string) *TPM {
	t.Helper()
	tpm := &TPM{Socket: filepath.Join(state, "s")}
	t.Cleanup(func() {
		if tpm.connection != nil {
			_ = tpm.connection.Close()
		}
		stop(tpm.process)
	})
	tpm.switchOn(t)
	return tpm
}

// switchOn starts the emulator on the state beside its socket.
func (tpm *TPM) switchOn(t testing.TB) {
	t.Helper()
	// With --terminate it ends with its one connection, so that even a test that is killed leaves no process behind.
	tpm.process = launch(t, nil, filepath.Dir(tpm.Socket), tpm.Socket, "--terminate")
	tpm.connection = dial(t, tpm.Socket)
	tpm.TPM = transport.FromReadWriteCloser(tpm.connection)
}

// Reset switches the TPM off and on, as the reset of its machine does: registers begin anew, keys that were made are gone, and
// the seeds stay, so that the same keys are made again. Nobody may use it meanwhile. One that NewShared made cannot be reset.
func (tpm *TPM) Reset(t testing.TB) {
	t.Helper()
	if err := errors.Join(tpm.connection.Close(), tpm.process.Wait()); err != nil {
		t.Fatalf("switch the TPM off: %v", err)
	}
	tpm.switchOn(t)
}

// serve runs swtpm until the test ends.
func serve(t testing.TB, attributes *syscall.SysProcAttr, state, socket string, args ...string) {
	t.Helper()
	cmd := launch(t, attributes, state, socket, args...)
	t.Cleanup(func() { stop(cmd) })
}

// launch starts swtpm.
func launch(t testing.TB, attributes *syscall.SysProcAttr, state, socket string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := exec.LookPath("swtpm")
	if err != nil {
		t.Fatal("swtpm is missing: apt-get install swtpm")
	}
	cmd := exec.Command(program, append([]string{
		"socket", "--tpm2", "--tpmstate", "dir=" + state,
		"--server", "type=unixio,path=" + socket, "--flags", "not-need-init,startup-clear",
	}, args...)...)
	cmd.SysProcAttr = attributes
	if err := cmd.Start(); err != nil {
		t.Fatalf("start swtpm: %v", err)
	}
	return cmd
}

// stop ends what launch started, if it still runs.
func stop(cmd *exec.Cmd) {
	if cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func dial(t testing.TB, socket string) net.Conn {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		connection, err := net.Dial("unix", socket)
		if err == nil {
			return connection
		}
		if time.Now().After(deadline) {
			t.Fatalf("swtpm does not answer at %s: %v", socket, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Extend measures data into a register of every bank, as firmware would.
func (tpm *TPM) Extend(t testing.TB, pcr int, data []byte) {
	t.Helper()
	_, err := tpm2.PCREvent{
		PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(pcr), Auth: tpm2.PasswordAuth(nil)},
		EventData: tpm2.TPM2BEvent{Buffer: data},
	}.Execute(tpm)
	if err != nil {
		t.Fatalf("extend PCR %d: %v", pcr, err)
	}
}

// Replay extends the registers by the digests of a log, as the boot did that left it. The log needs digests of every predicted bank.
func (tpm *TPM) Replay(t testing.TB, log pcrs.Log) {
	t.Helper()
	for _, e := range log.Events {
		if e.Type == pcrs.EvNoAction {
			continue
		}
		extend := tpm2.PCRExtend{PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(e.Register), Auth: tpm2.PasswordAuth(nil)}}
		for _, bank := range pcrs.PredictedBanks() {
			extend.Digests.Digests = append(extend.Digests.Digests, tpm2.TPMTHA{HashAlg: tpm2.TPMIAlgHash(bank), Digest: e.Digests[bank]})
		}
		if _, err := extend.Execute(tpm); err != nil {
			t.Fatalf("extend %v: %v", e.Register, err)
		}
	}
}

// Store has an index of the TPM's memory hold a content, as its manufacturer would have; nil removes the index.
func (tpm *TPM) Store(t testing.TB, index tpm2.TPMHandle, content []byte) {
	t.Helper()
	platform := tpm2.AuthHandle{Handle: tpm2.TPMRHPlatform, Auth: tpm2.PasswordAuth(nil)}
	if former, err := (tpm2.NVReadPublic{NVIndex: index}).Execute(tpm); err == nil {
		_, err = tpm2.NVUndefineSpace{AuthHandle: platform, NVIndex: tpm2.NamedHandle{Handle: index, Name: former.NVName}}.Execute(tpm)
		if err != nil {
			t.Fatalf("remove index %#x: %v", uint32(index), err)
		}
	}
	if content == nil {
		return
	}
	space := tpm2.TPMSNVPublic{
		NVIndex: index, NameAlg: tpm2.TPMAlgSHA256, DataSize: uint16(len(content)),
		Attributes: tpm2.TPMANV{PPWrite: true, PPRead: true, OwnerRead: true, AuthRead: true, NoDA: true, PlatformCreate: true},
	}
	if _, err := (tpm2.NVDefineSpace{AuthHandle: platform, PublicInfo: tpm2.New2B(space)}).Execute(tpm); err != nil {
		t.Fatalf("define index %#x: %v", uint32(index), err)
	}
	const piece = 512
	for at := 0; at < len(content); at += piece {
		public, err := tpm2.NVReadPublic{NVIndex: index}.Execute(tpm) // Its name changes with the first write.
		if err != nil {
			t.Fatalf("index %#x: %v", uint32(index), err)
		}
		_, err = tpm2.NVWrite{
			AuthHandle: platform, NVIndex: tpm2.NamedHandle{Handle: index, Name: public.NVName},
			Data: tpm2.TPM2BMaxNVBuffer{Buffer: content[at:min(at+piece, len(content))]}, Offset: uint16(at),
		}.Execute(tpm)
		if err != nil {
			t.Fatalf("write index %#x: %v", uint32(index), err)
		}
	}
}
