// Package config finds the node's configuration. It comes through the host, so
// it is measured before use, and kept: a host cannot show one configuration to
// the TPM and another to the agent.
package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// firmwareFile is QEMU's fw_cfg item opt/hullmark/config as Linux shows it
// (Documentation/ABI/testing/sysfs-firmware-qemu_fw_cfg).
const firmwareFile = "/sys/firmware/qemu_fw_cfg/by_name/opt/hullmark/config/raw"

// ImageFile is the file of the verified root that says where nodes of this image find their configuration; one word. An image
// that does not say it means fw_cfg.
const ImageFile = "/usr/lib/hullmark/config-source"

// Source is where a configuration is found and where its bytes are kept for the rest of the boot.
type Source struct {
	// File holds the configuration that the host supplies, where it comes from neither a service nor the disk.
	File string
	// service is the cloud's metadata service that has the configuration; nil means none.
	service *service
	// Disk, if set, reads what is in the partition for it of the disk, or of the installation medium, that the machine has booted from.
	Disk func(context.Context) ([]byte, error)
	// Cache is the copy, on a RAM disk.
	Cache string
}

// Named returns the source of that name, without a cache: fw_cfg, partition, azure, gcp or aws; "" is fw_cfg. A partition is read by disk.
func Named(name string, disk func(context.Context) ([]byte, error)) (Source, error) {
	switch name {
	case "", "fw_cfg":
		return Source{File: firmwareFile}, nil
	case "partition":
		return Source{Disk: disk}, nil
	}
	if s, ok := services[name]; ok {
		return Source{service: &s}, nil
	}
	return Source{}, fmt.Errorf("%s: %q is no source of node configurations", ImageFile, name)
}

// Bytes returns the configuration as it was when it was first asked for in
// this boot. They are not checked: the caller measures first and decodes then.
func (s Source) Bytes(ctx context.Context) ([]byte, error) {
	kept, err := readLimited(s.Cache)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return kept, err
	}
	found, where, err := s.find(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(where, "nothing")
	}
	if errors.Is(err, errUnanswered) {
		return nil, missing(where, err.Error())
	}
	if err != nil {
		return nil, err
	}
	return found, keep(s.Cache, found)
}

// find asks the source. Where there is no configuration, its error is fs.ErrNotExist.
func (s Source) find(ctx context.Context) (found []byte, where string, err error) {
	switch {
	case s.service != nil:
		found, err = s.service.fetch(ctx)
		return found, s.service.URL, err
	case s.Disk == nil:
		found, err = readLimited(s.File)
		return found, s.File, err
	}
	if found, err = s.Disk(ctx); err == nil && len(found) == 0 {
		err = fs.ErrNotExist
	}
	if err == nil {
		found, err = limited(found)
	}
	return found, "partition " + slot.ConfigName + " of the disk that was booted from", err
}

func missing(where, got string) error {
	return &hullmark.Condition{
		Code: "config-missing", Step: "CONFIG", Title: "the machine was given no node configuration", Expected: where, Got: got,
		Next: "start the machine with a node configuration, which hullmark cluster writes", Retry: true,
	}
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
	return limited(b)
}

func limited(b []byte) ([]byte, error) {
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
	return atomicfile.Write(path, b, 0o600)
}

// Invalid returns the condition of a configuration that cannot be used in this boot any more.
func Invalid(err error) error {
	return &hullmark.Condition{
		Code: "config-invalid", Step: "CONFIG", Title: err.Error(),
		Next: "correct the node configuration and start the machine again",
	}
}
