package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// endMachines ends the machines and networks that a run has left because it failed or was interrupted: they outlive their controller.
func (d *demo) endMachines() error {
	for range 60 {
		left, err := d.machines()
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		time.Sleep(time.Second)
	}
	return fmt.Errorf("machines below %s still run", d.path("machines"))
}

// machines are the processes whose arguments name the folder of the machines.
func (d *demo) machines() (pids []int, err error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err != nil || !bytes.Contains(text, []byte(d.path("machines", namespace))) {
			continue // It has ended, or is none.
		}
		pid, err := strconv.Atoi(strings.Split(line, "/")[2])
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
