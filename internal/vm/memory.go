package vm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Where QEMU's q35 ends the memory below 4 GiB: at its size, but from 2816 MiB on at 2 GiB, and the rest lies above 4 GiB
// (hw/i386/pc_q35.c).
const (
	q35SplitFrom = 0xb0000000
	q35LowMemory = 0x80000000
)

// maxFirmwareLogs is how many places that look like a log are returned; OVMF leaves about four.
const maxFirmwareLogs = 64

// logWindow is how far below the end of low memory firmware is searched for its event log. OVMF keeps it within the last 64 MiB.
const logWindow = 128 << 20

// logSize is how many bytes are returned of each log at most; OVMF's buffer has as many.
const logSize = 64 << 10

// logSignature stands at the start of a crypto-agile event log, in its first event's data (PFP §10.4.5.1), and logHeader is how
// many bytes precede it.
var logSignature = []byte("Spec ID Event03\x00")

const logHeader = 32

// FirmwareLogs returns what looks like an event log in the memory of the running machine, lowest address first, each with what
// follows it in memory up to 64 KiB: firmware keeps it there until an operating system takes it over. The caller has to find
// out which are whole.
func (m *Machine) FirmwareLogs() ([][]byte, error) {
	memory, err := m.memory(logRange(m.config.MemoryMiB))
	if err != nil {
		return nil, err
	}
	var logs [][]byte
	for at := 0; ; at++ {
		i := bytes.Index(memory[at:], logSignature)
		if i < 0 || len(logs) == maxFirmwareLogs {
			return logs, nil
		}
		at += i
		if at >= logHeader {
			logs = append(logs, memory[at-logHeader:min(len(memory), at-logHeader+logSize)])
		}
	}
}

// logRange is where a machine's firmware is searched for its log.
func logRange(memoryMiB int) (address, size int64) {
	top := int64(memoryMiB) << 20
	if top >= q35SplitFrom {
		top = q35LowMemory
	}
	address = max(0, top-logWindow)
	return address, top - address
}

// Version is the version of the QEMU that runs the machine, such as "10.0.2".
func (m *Machine) Version() (string, error) {
	reply, err := m.monitor.execute("query-version", nil)
	if err != nil {
		return "", err
	}
	var v struct {
		QEMU struct{ Major, Minor, Micro int } `json:"qemu"`
	}
	if err := json.Unmarshal(reply, &v); err != nil {
		return "", fmt.Errorf("vm: qmp query-version: %w", err)
	}
	return fmt.Sprintf("%d.%d.%d", v.QEMU.Major, v.QEMU.Minor, v.QEMU.Micro), nil
}

// memory reads the machine's memory by physical address.
func (m *Machine) memory(address, size int64) ([]byte, error) {
	path := filepath.Join(m.runtime, "memory")
	defer os.Remove(path)
	inside := toolset{m.config.Tools}.inside(path)
	if _, err := m.monitor.execute("pmemsave", map[string]any{"val": address, "size": size, "filename": inside}); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("vm: memory of the machine: %w", err)
	}
	if int64(len(content)) != size {
		return nil, fmt.Errorf("vm: memory of the machine: %d bytes, asked for %d", len(content), size)
	}
	return content, nil
}
