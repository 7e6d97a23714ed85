package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// Programs is where the verity root has Kubernetes' programs.
const Programs = "/usr/lib/kubernetes/bin"

// deprecatedFlag is what a program says of a flag that it still takes (pflag, MarkDeprecated).
var deprecatedFlag = regexp.MustCompile(`(?m)^Flag (--\S+) has been deprecated`)

// CheckFlags has the programs in the folder bin judge the flags that they are to be started with, by their names: only a release's own
// programs know which it takes, hidden ones and feature gates among them. Each is asked for its version with them, which it says once it
// has read them, and does nothing. It returns the flags that are deprecated, as "PROGRAM --FLAG". The error is a *hullmark.Condition where
// one is refused. The kubelet reads feature gates only as it starts: of those nothing is said.
func CheckFlags(ctx context.Context, bin string, flags map[string][]string) (deprecated []string, err error) {
	for _, program := range slices.Sorted(maps.Keys(flags)) {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, program), append(slices.Clone(flags[program]), "--version")...)
		var said bytes.Buffer
		cmd.Stderr = &said
		err := cmd.Run()
		var refused *exec.ExitError
		switch {
		case errors.As(err, &refused) && refused.Exited():
			return nil, flagsRemoved(program, said.String())
		case err != nil:
			return nil, fmt.Errorf("judge flags: run %s: %w", program, err)
		}
		for _, m := range deprecatedFlag.FindAllStringSubmatch(said.String(), -1) {
			deprecated = append(deprecated, program+" "+m[1])
		}
	}
	return deprecated, nil
}

// flagsRemoved is the condition of a program that would not start.
func flagsRemoved(program, said string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "flags-removed", Step: "UPDATE", Title: fmt.Sprintf("%s of this release does not take the flags that the cluster gives it: %.500q", program, refusal(said)),
		Next: "take the flag out of the cluster's documents (the ConfigMap kubeadm-config; kubeletExtraArgs) before the release is tried again",
	}
}

// refusal is the line of a program's output that says why it ended.
func refusal(said string) string {
	first := ""
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if first == "" {
			first = line
		}
		for _, sign := range []string{"unknown flag", "unrecognized feature gate", "invalid argument", "invalid value", "not defined"} {
			if strings.Contains(line, sign) {
				return line
			}
		}
	}
	return first
}
