// Package config finds the node's configuration. It comes through the host, so
// it is measured before use, and kept: a host cannot show one configuration to
// the TPM and another to the agent.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark"
)

// FirmwareFile is QEMU's fw_cfg item opt/hullmark/config as Linux shows it
// (Documentation/ABI/testing/sysfs-firmware-qemu_fw_cfg).
const FirmwareFile = "/sys/firmware/qemu_fw_cfg/by_name/opt/hullmark/config/raw"

// Source is where a configuration is found and where its bytes are kept for the rest of the boot.
type Source struct {
	// File holds the configuration that the host supplies.
	File string
	// Cache is the copy, on a RAM disk.
	Cache string
}

// Bytes returns the configuration as it was when it was first asked for in
// this boot. They are not checked: the caller measures first and decodes then.
func (s Source) Bytes() ([]byte, error) {
	kept, err := readLimited(s.Cache)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return kept, err
	}
	found, err := readLimited(s.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &hullmark.Condition{
			Code: "config-missing", Step: "CONFIG", Title: "the machine was given no node configuration", Expected: s.File, Got: "nothing",
			Next: "start the machine with a node configuration, which hullmark cluster writes", Retry: true,
		}
	}
	if err != nil {
		return nil, err
	}
	return found, keep(s.Cache, found)
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, hullmark.MaxNodeConfig+1))
	if err != nil {
		return nil, fmt.Errorf("read node config: %w", err)
	}
	if len(b) > hullmark.MaxNodeConfig {
		return nil, Invalid(fmt.Errorf("more than %d bytes", hullmark.MaxNodeConfig))
	}
	return b, nil
}

// keep stores the copy completely or not at all.
func keep(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Invalid returns the condition of a configuration that cannot be used in this boot any more.
func Invalid(err error) error {
	return &hullmark.Condition{
		Code: "config-invalid", Step: "CONFIG", Title: err.Error(),
		Next: "correct the node configuration and start the machine again",
	}
}
