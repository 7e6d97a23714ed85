package prover

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark/attest"
)

// ReadRegisters reads the SHA-256 values of the registers that a quote covers.
func ReadRegisters(tpm transport.TPM) (attest.Registers, error) {
	var registers attest.Registers
	for _, half := range [][]byte{{0xff, 0, 0}, {0, 0xfb, 0}} { // A TPM returns at most eight values at once.
		if err := readHalf(tpm, half, &registers); err != nil {
			return attest.Registers{}, fmt.Errorf("read registers: %w", err)
		}
	}
	return registers, nil
}

// readHalf reads the registers that mask selects, all of which one TPM2_PCR_Read must return.
func readHalf(tpm transport.TPM, mask []byte, registers *attest.Registers) error {
	read, err := tpm2.PCRRead{PCRSelectionIn: tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{
		Hash: tpm2.TPMAlgSHA256, PCRSelect: mask,
	}}}}.Execute(tpm)
	if err != nil {
		return err
	}
	values := read.PCRValues.Digests
	for pcr := range registers {
		if mask[pcr/8]&(1<<(pcr%8)) == 0 {
			continue
		}
		if len(values) == 0 || len(values[0].Buffer) != sha256.Size {
			return fmt.Errorf("PCR %d: the TPM returned no SHA-256 value; is its SHA-256 bank active?", pcr)
		}
		copy(registers[pcr][:], values[0].Buffer)
		values = values[1:]
	}
	return nil
}

// ExtendEvent measures data into a register of every active bank
// (TPM2_PCR_Event, TPM 2.0 Part 3 §22.3). data may have at most 1,024 bytes.
func ExtendEvent(tpm transport.TPM, pcr int, data []byte) error {
	if pcr < 0 || pcr >= len(attest.Registers{}) {
		return fmt.Errorf("extend PCR %d: no such register", pcr)
	}
	_, err := tpm2.PCREvent{
		PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(pcr), Auth: tpm2.PasswordAuth(nil)},
		EventData: tpm2.TPM2BEvent{Buffer: data},
	}.Execute(tpm)
	if err != nil {
		return fmt.Errorf("extend PCR %d: %w", pcr, err)
	}
	return nil
}

// ReadIndex returns the content of an NV index that an empty password opens, its own or the owner's, at most most bytes of it; nil if
// there is no such index.
func ReadIndex(tpm transport.TPM, index tpm2.TPMHandle, most int) ([]byte, error) {
	public, err := tpm2.NVReadPublic{NVIndex: index}.Execute(tpm)
	if errors.Is(err, tpm2.TPMRCHandle) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	area, err := public.NVPublic.Contents()
	if err != nil {
		return nil, err
	}
	if int(area.DataSize) > most {
		return nil, fmt.Errorf("%d bytes, at most %d are read", area.DataSize, most)
	}
	named := tpm2.NamedHandle{Handle: index, Name: public.NVName}
	by := tpm2.AuthHandle{Handle: index, Name: public.NVName, Auth: tpm2.PasswordAuth(nil)}
	if !area.Attributes.AuthRead {
		by = tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	}
	return readIndex(tpm, by, named, int(area.DataSize))
}

// readIndex reads an index in pieces that every TPM allows.
func readIndex(tpm transport.TPM, by tpm2.AuthHandle, index tpm2.NamedHandle, size int) ([]byte, error) {
	const piece = 512
	content := make([]byte, 0, size)
	for len(content) < size {
		read, err := tpm2.NVRead{
			AuthHandle: by,
			NVIndex:    index,
			Size:       uint16(min(piece, size-len(content))),
			Offset:     uint16(len(content)),
		}.Execute(tpm)
		if err != nil {
			return nil, err
		}
		if len(read.Data.Buffer) == 0 {
			return nil, errors.New("the TPM returned nothing")
		}
		content = append(content, read.Data.Buffer...)
	}
	return content, nil
}
