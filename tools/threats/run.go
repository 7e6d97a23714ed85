package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// source is a package's tests behind one build tag.
type source struct{ folder, tag string }

// batch is what one run of go test takes.
type batch struct {
	source
	names []string
}

func (b batch) String() string {
	text := b.folder + ": " + strings.Join(b.names, " ")
	if b.tag != "" {
		text += " (" + b.tag + ")"
	}
	return text
}

// batches returns the rows' tests that exist and are asked for, each once.
func batches(rows []row, found map[function]declared, tags []string) []batch {
	var list []batch
	for _, r := range rows {
		for _, test := range r.tests() {
			d, ok := found[test.function()]
			if !ok || !d.asked(tags) {
				continue
			}
			i := slices.IndexFunc(list, func(b batch) bool { return b.source == source{test.folder, d.tag} })
			if i < 0 {
				i = len(list)
				list = append(list, batch{source: source{test.folder, d.tag}})
			}
			if !slices.Contains(list[i].names, test.name) {
				list[i].names = append(list[i].names, test.name)
			}
		}
	}
	return list
}

// asked reports whether a test is behind no tag, or one of these.
func (d declared) asked(tags []string) bool { return d.tag == "" || slices.Contains(tags, d.tag) }

// outcomes are how tests and subtests of one batch ended, by go test's names: pass, fail or skip.
type outcomes map[string]string

// run lets go test run the batch. What a test that did not pass said is shown.
func (b batch) run(ctx context.Context) (outcomes, error) {
	pattern := "^(" + strings.Join(b.names, "|") + ")$"
	// The bound is the longest of the Makefile's targets for tests.
	// In the folder itself, since it may be of another module (tools/capi).
	cmd := exec.CommandContext(ctx, "go", "test", "-C", dir(b.folder), "-json", "-count", "1", "-timeout", "80m", "-tags", b.tag, "-run", pattern, ".")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var ended *exec.ExitError
	if err != nil && (!errors.As(err, &ended) || ctx.Err() != nil) {
		return nil, errors.Join(err, ctx.Err())
	}
	found, said, wrong := readEvents(bytes.NewReader(out))
	if wrong != nil {
		return nil, fmt.Errorf("%s: read what go test says: %w", b, wrong)
	}
	if err != nil {
		fmt.Print(said)
	}
	return found, nil
}

// readEvents returns how tests ended, and what go test printed of its own and of those that did not pass.
func readEvents(r io.Reader) (found outcomes, said string, err error) {
	type event struct{ Action, Test, Output string } // go doc test2json
	var events []event
	found = outcomes{}
	for d := json.NewDecoder(r); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, "", err
		}
		events = append(events, e)
		if e.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			found[e.Test] = e.Action
		}
	}
	var text strings.Builder
	for _, e := range events {
		if found[e.Test] != "pass" {
			text.WriteString(e.Output)
		}
	}
	return found, text.String(), nil
}

// verdict on a test is on its whole function: the positive control of a subtest may be beside it. What was skipped has shown nothing.
func (o outcomes) verdict(test reference) verdict {
	named := test.name
	if test.subtest != "" {
		named += "/" + strings.ReplaceAll(test.subtest, " ", "_")
	}
	for name, outcome := range o {
		if outcome == "skip" && (name == test.name || strings.HasPrefix(name, test.name+"/")) {
			return skipped
		}
	}
	switch {
	case o[test.name] != "pass": // or it did not end, or its package is not built
		return failed
	case o[named] == "":
		return missing
	}
	return passed
}
