package initrd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// partitionGUIDs returns the GUIDs of the root and hash partitions: the halves of the root hash (UAPI.2, discoverable partitions).
func partitionGUIDs(hash string) (data, tree string) {
	return guid(hash[:32]), guid(hash[32:])
}

func guid(hex string) string {
	return strings.Join([]string{hex[:8], hex[8:12], hex[12:16], hex[16:20], hex[20:]}, "-")
}

// findPartitions waits until the kernel knows both partitions, and returns their device files. Dir is /sys/class/block. Which disk shows them does
// not matter: the root hash decides about their content.
func findPartitions(dir, hash string, timeout time.Duration) (data, tree string, err error) {
	dataGUID, treeGUID := partitionGUIDs(hash)
	for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		devices, err := partitions(dir)
		if err != nil {
			return "", "", err
		}
		data, tree = devices[dataGUID], devices[treeGUID]
		if data != "" && tree != "" {
			return data, tree, nil
		}
		if time.Now().After(end) {
			return "", "", fmt.Errorf("find partitions %s and %s: not there after %s; there are %v", dataGUID, treeGUID, timeout, devices)
		}
	}
}

// partitions maps the GUID of each partition that the kernel knows to its device file.
func partitions(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "uevent"))
	if err != nil {
		return nil, err
	}
	devices := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the device went away
		}
		var name, id string
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "DEVNAME":
				name = value
			case "PARTUUID":
				id = value
			}
		}
		if name != "" && id != "" {
			devices[id] = "/dev/" + name
		}
	}
	return devices, nil
}
