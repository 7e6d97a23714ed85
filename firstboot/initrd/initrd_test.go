package initrd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const someHash = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef"

func TestRootHashIsOneOfFullLength(t *testing.T) {
	if got, err := rootHash("quiet roothash=" + someHash + " panic=1\n"); err != nil || got != someHash {
		t.Errorf("got %q, %v", got, err)
	}
	for name, cmdline := range map[string]string{
		"none": "quiet", "short": "roothash=00", "two": "roothash=" + someHash + " roothash=" + someHash,
		"upper case": "roothash=" + strings.ToUpper(someHash), "quoted": `"roothash=` + someHash + `"`,
	} {
		if got, err := rootHash(cmdline); err == nil {
			t.Errorf("%s: accepted %q", name, got)
		}
	}
}

func TestFindPartitionsByTheHalvesOfTheHash(t *testing.T) {
	dir := t.TempDir()
	for name, uevent := range map[string]string{
		"vda":  "MAJOR=254\nDEVNAME=vda\nDEVTYPE=disk\n",
		"vda2": "DEVNAME=vda2\nPARTN=2\nPARTUUID=00112233-4455-6677-8899-aabbccddeeff\n",
		"vdb7": "DEVNAME=vdb7\nPARTUUID=01234567-89ab-cdef-0123-456789abcdef\n",
		"vdb8": "DEVNAME=vdb8\nPARTUUID=ffffffff-89ab-cdef-0123-456789abcdef\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "uevent"), []byte(uevent), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, tree, err := findPartitions(dir, someHash, time.Second)
	if err != nil || data != "/dev/vda2" || tree != "/dev/vdb7" {
		t.Errorf("got %q, %q, %v", data, tree, err)
	}
	_, _, err = findPartitions(dir, strings.Repeat("0", 64), 0)
	if err == nil || !strings.Contains(err.Error(), "/dev/vda2") {
		t.Errorf("absent partitions: %v; want what there is instead", err)
	}
}
