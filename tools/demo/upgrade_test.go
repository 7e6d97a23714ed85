package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

func TestBootsOfAConsole(t *testing.T) {
	first, second := strings.Repeat("1a", 32), strings.Repeat("2b", 32)
	log := "noise\n/proc/cmdline:console=ttyS0 quiet roothash=" + first + "\r\n" +
		"/sys/class/tpm/tpm0/pcr-sha256/0:" + strings.Repeat("A", 64) + "\r\n/sys/class/tpm/tpm0/pcr-sha256/11:" + strings.Repeat("B", 64) + "\r\n" +
		"Kernel panic\r\nBdsDxe: starting\r\n/proc/cmdline:roothash=" + second + "\r\n"
	boots := bootsOf([]byte(log))
	if len(boots) != 2 || boots[0].root != first || boots[1].root != second {
		t.Fatalf("got %+v", boots)
	}
	want := map[int]string{0: strings.Repeat("A", 64), 11: strings.Repeat("B", 64)}
	if !maps.Equal(boots[0].registers, want) || len(boots[1].registers) != 0 {
		t.Errorf("got %+v", boots)
	}
}

func TestBootIsComparedWithItsDocument(t *testing.T) {
	var document measurements.Document
	measured := seenBoot{registers: map[int]string{}}
	for i := range registerCount {
		value := pcrs.Digest(make([]byte, 32))
		if i != 8 && i != 15 {
			value[0] = byte(i)
		}
		measured.registers[i] = fmt.Sprintf("%X", []byte(value))
		if i == 8 {
			value = pcrs.Digest(strings.Repeat("c", 32)) // the configuration, which is not measured yet
		}
		document.Registers = append(document.Registers, measurements.Register{Register: pcrs.Register(i), Values: pcrs.Digests{pcrs.SHA256: value}})
	}
	if err := measured.compare(document); err != nil {
		t.Fatal(err)
	}
	for i := range registerCount {
		other := seenBoot{registers: maps.Clone(measured.registers)}
		other.registers[i] = strings.Repeat("F", 64)
		if other.compare(document) == nil {
			t.Errorf("PCR %d may be anything", i)
		}
		delete(other.registers, i)
		if other.compare(document) == nil {
			t.Errorf("PCR %d may be missing", i)
		}
	}
	document.Registers = document.Registers[1:]
	if err := measured.compare(document); err == nil || !strings.Contains(err.Error(), "not predicted") {
		t.Errorf("a register that nobody predicted: %v", err)
	}
}

func TestKubernetesIsSet(t *testing.T) {
	files := map[string]string{
		"tools/kubernetes/go.mod": "require (\n\tk8s.io/client-go v0.36.3\n\tk8s.io/kubernetes v1.36.3\n\tother v1.2.0\n)\nreplace k8s.io/api => k8s.io/api v0.36.3\n",
		"kubeadm/documents.go":    "package kubeadm\n\nconst Version = \"v1.36.3\"\n",
	}
	checkout := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(checkout, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write(name, text)
	}
	if err := setKubernetes(checkout, "36.1"); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		after, err := os.ReadFile(filepath.Join(checkout, name))
		if want := strings.ReplaceAll(text, "36.3", "36.1"); err != nil || string(after) != want {
			t.Errorf("%s: %s, %v", name, after, err)
		}
	}
	write("kubeadm/documents.go", "package kubeadm\n")
	if setKubernetes(checkout, "36.2") == nil {
		t.Error("a checkout that does not name its Kubernetes was accepted")
	}
	write("tools/kubernetes/go.mod", "module m\n")
	if setKubernetes(checkout, "36.2") == nil {
		t.Error("a module without Kubernetes was accepted")
	}
}

func TestPartsAreNamed(t *testing.T) {
	d := &demo{upgrade: true, state: t.TempDir()}
	d.plan(1)
	if _, err := d.upgradeSteps("packages,nothing"); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("got %v", err)
	}
	d.resumed = true
	steps, err := d.upgradeSteps("hang packages")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range steps {
		names = append(names, s.name)
	}
	want := []string{
		"switch the machines on, recover", "hang: build and measure it", "hang: the worker tries it", "packages: build and measure it",
		"packages: the cluster takes it", "ask the cluster at the end",
	}
	if !slices.Equal(names, want) {
		t.Errorf("got %q", names)
	}
	all, err := d.upgradeSteps("")
	if err != nil || len(all) != 2+1+2*5 {
		t.Errorf("all parts: %d steps, %v", len(all), err)
	}
}
