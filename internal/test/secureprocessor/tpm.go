package main

import (
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// Where a TPM has what a paravisor's has.
const (
	reportIndex = tpm2.TPMHandle(0x01400001)
	ekHandle    = tpm2.TPMHandle(0x81010001)
	// mostWritten is how many bytes every TPM takes at once.
	mostWritten = 512
)

// readEK returns the TPMT_PUBLIC of the endorsement key.
func readEK(tpm transport.TPM) ([]byte, error) {
	reply, err := tpm2.ReadPublic{ObjectHandle: ekHandle}.Execute(tpm)
	if err != nil {
		return nil, fmt.Errorf("endorsement key: %w", err)
	}
	return reply.OutPublic.Bytes(), nil
}

// putReport leaves a report where the guest looks for it, in the place of an earlier one.
func putReport(tpm transport.TPM, content []byte) error {
	owner := tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	earlier, err := tpm2.NVReadPublic{NVIndex: reportIndex}.Execute(tpm)
	switch {
	case err == nil:
		if _, err := (tpm2.NVUndefineSpace{AuthHandle: owner, NVIndex: tpm2.NamedHandle{Handle: reportIndex, Name: earlier.NVName}}).Execute(tpm); err != nil {
			return fmt.Errorf("remove the earlier report: %w", err)
		}
	case !errors.Is(err, tpm2.TPMRCHandle):
		return err
	}
	define := tpm2.NVDefineSpace{AuthHandle: owner, PublicInfo: tpm2.New2B(tpm2.TPMSNVPublic{
		NVIndex: reportIndex, NameAlg: tpm2.TPMAlgSHA256, DataSize: uint16(len(content)),
		Attributes: tpm2.TPMANV{OwnerWrite: true, OwnerRead: true, AuthWrite: true, AuthRead: true, NoDA: true},
	})}
	if _, err := define.Execute(tpm); err != nil {
		return fmt.Errorf("define NV index %#x with %d bytes: %w", uint32(reportIndex), len(content), err)
	}
	return write(tpm, content)
}

func write(tpm transport.TPM, content []byte) error {
	for at := 0; at < len(content); at += mostWritten {
		public, err := tpm2.NVReadPublic{NVIndex: reportIndex}.Execute(tpm) // Its name changes with the first write.
		if err != nil {
			return err
		}
		index := tpm2.NamedHandle{Handle: reportIndex, Name: public.NVName}
		_, err = tpm2.NVWrite{
			AuthHandle: tpm2.AuthHandle{Handle: reportIndex, Name: public.NVName, Auth: tpm2.PasswordAuth(nil)}, NVIndex: index,
			Data: tpm2.TPM2BMaxNVBuffer{Buffer: content[at:min(at+mostWritten, len(content))]}, Offset: uint16(at),
		}.Execute(tpm)
		if err != nil {
			return fmt.Errorf("write NV index %#x: %w", uint32(reportIndex), err)
		}
	}
	return nil
}
