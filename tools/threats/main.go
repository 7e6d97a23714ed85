// Command threats runs the tests that docs/threats.md names, and ends with a table of its attacks: which are refused, and
// whether their positive controls are accepted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
)

const page = "docs/threats.md"

func main() {
	tags := flag.String("tags", "long", "run tests behind these build `tags`, too")
	only := flag.String("only", "", "show those attacks that match this `pattern`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, strings.Fields(*tags), *only); err != nil {
		fmt.Fprintln(os.Stderr, "threats:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, tags []string, only string) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	rows, err := readPage(page)
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return !pattern.MatchString(r.attack) })
	if len(rows) == 0 {
		return errors.New("there are no such attacks")
	}
	found, err := find(".", rows)
	if err != nil {
		return err
	}
	r := results{found: found, tags: tags, of: map[source]outcomes{}}
	for _, b := range batches(rows, found, tags) {
		fmt.Printf("== %s\n", b)
		if r.of[b.source], err = b.run(ctx); err != nil {
			return err
		}
	}
	return printTable(os.Stdout, rows, r)
}
