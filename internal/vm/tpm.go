package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/toolstree"
)

// Names inside the state folder, and inside the TPM's folder.
const (
	tpmName   = "tpm"
	caName    = "ca"
	caKeyName = "key.pem"
	setupConf = "setup.conf"
	caConf    = "ca.conf"
	caOptions = "ca.options"
	ekCertDER = "ek-rsa2048.crt"
	controlID = "tpm.sock"
)

// provisionTPM makes the machine's TPM unless it is there: an RSA-2048 EK, a certificate for it by a CA made for this machine
// alone, and active SHA-256, SHA-384 and SHA-512 banks. The TPM's folder gets its name last, so an interrupted attempt is repeated.
func provisionTPM(ctx context.Context, t toolset, dir, runtime string) error {
	final := filepath.Join(dir, tpmName)
	_, err := os.Stat(final)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := t.require(swtpmSetupProgram, swtpmCAProgram); err != nil {
		return err
	}
	return atomicfile.Folder(final, 0o700, func(fresh string) error {
		ca := filepath.Join(fresh, caName)
		if err := os.Mkdir(ca, 0o700); err != nil {
			return fmt.Errorf("vm: new tpm: %w", err)
		}
		if err := makeCA(ca, dir); err != nil {
			return err
		}
		if err := setupTPM(ctx, t, fresh); err != nil {
			return err
		}
		return recordEK(ctx, t, fresh, dir, runtime)
	})
}

// setupTPM has swtpm_setup manufacture a TPM in a folder that holds its CA.
func setupTPM(ctx context.Context, t toolset, tpm string) error {
	if err := writeSetupConfig(t, tpm); err != nil {
		return err
	}
	inside := t.inside(tpm)
	cmd, err := t.command(ctx, []toolstree.Bind{{Host: tpm, Writable: true}}, swtpmSetupProgram,
		// Started by root it would become a user of its own, who cannot write to this folder.
		"--tpm2", "--runas", "root", "--tpmstate", inside, "--config", filepath.Join(inside, setupConf),
		"--create-ek-cert", "--write-ek-cert-files", inside, "--vmid", "hullmark-vm", "--pcr-banks", "sha256,sha384,sha512")
	if err != nil {
		return err
	}
	said := &strings.Builder{}
	cmd.Stdout = said
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	<-p.done
	if p.err != nil {
		return fmt.Errorf("vm: new tpm: %s: %w: %s%s", swtpmSetupProgram, p.err, said, p.stderr)
	}
	return nil
}

// writeSetupConfig writes what swtpm_setup and its swtpm_localca otherwise read from /etc, which names a CA of the whole host.
func writeSetupConfig(t toolset, tpm string) error {
	localca, err := t.program(swtpmCAProgram)
	if err != nil {
		return err
	}
	inside := t.inside(tpm)
	ca := filepath.Join(inside, caName)
	for name, content := range map[string]string{
		setupConf: fmt.Sprintf("create_certs_tool = %s\ncreate_certs_tool_config = %s\ncreate_certs_tool_options = %s\n",
			localca, filepath.Join(inside, caConf), filepath.Join(inside, caOptions)),
		caConf: fmt.Sprintf("statedir = %s\nsigningkey = %s\nissuercert = %s\ncertserial = %s\n",
			ca, filepath.Join(ca, caKeyName), filepath.Join(ca, CAFile), filepath.Join(ca, "serial")),
		caOptions: "--platform-manufacturer Hullmark\n--platform-version 1\n--platform-model vm\n",
	} {
		if err := atomicfile.Write(filepath.Join(tpm, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("vm: new tpm: %w", err)
		}
	}
	return nil
}

// startTPM starts the TPM for QEMU, which it reaches by its control socket. It ends by itself when QEMU's connection does.
func startTPM(ctx context.Context, t toolset, dir, runtime string) (*process, error) {
	state := filepath.Join(dir, tpmName)
	return startSWTPM(ctx, t, state, runtime,
		"--ctrl", "type=unixio,path="+t.inside(filepath.Join(runtime, controlID)), "--flags", "startup-clear")
}

// startSWTPM starts swtpm on the TPM in a folder.
func startSWTPM(ctx context.Context, t toolset, state, runtime string, args ...string) (*process, error) {
	binds := []toolstree.Bind{{Host: state, Writable: true}, {Host: runtime, Writable: true}}
	args = append([]string{"socket", "--tpm2", "--terminate", "--tpmstate", "dir=" + t.inside(state)}, args...)
	cmd, err := t.command(ctx, binds, swtpmProgram, args...)
	if err != nil {
		return nil, err
	}
	return startProcess(cmd)
}
