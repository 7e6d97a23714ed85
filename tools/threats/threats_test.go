package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

const checkout = "../.."

// TestThreatsPage holds docs/threats.md to the code: each attack is there once, and each test that is named beside it exists.
func TestThreatsPage(t *testing.T) {
	rows, err := readPage(checkout + "/" + page)
	if err != nil {
		t.Fatal(err)
	}
	found, err := find(checkout, rows)
	if err != nil {
		t.Fatal(err)
	}
	attacks := map[string]bool{}
	for _, r := range rows {
		if attacks[r.attack] {
			t.Errorf("%s: it is there twice", r.attack)
		}
		attacks[r.attack] = true
		for _, test := range r.tests() {
			d, ok := found[test.function()]
			if !ok {
				t.Errorf("%s: there is no %s", r.attack, test)
			} else if test.subtest != "" && !d.texts[test.subtest] {
				t.Errorf("%s: %s has no such subtest", r.attack, test)
			}
		}
	}
	if len(rows) < 42 {
		t.Errorf("only %d attacks were read", len(rows))
	}
}

func TestReadRow(t *testing.T) {
	got, err := readRow("| a | m | `a/b.TestX/\"one\"`, `/\"two, three\"`, `.FuzzY`, `hullmark.TestZ`; control: `a.TestT` |\n")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, test := range got.tests() {
		names = append(names, test.String())
	}
	want := []string{`a/b.TestX/"one"`, `a/b.TestX/"two, three"`, "a/b.FuzzY", "hullmark.TestZ", "a.TestT"}
	if got.attack != "a" || !slices.Equal(names, want) || len(got.accepted()) != 1 {
		t.Errorf("got %q, %q", got.attack, names)
	}
	for line, want := range map[string]string{
		"| a | m |  |":                         "no test is named",
		"| a | m | `x.TestX`; control: none |": "no test is named",
		"| a | m | not shown |":                "no test is named",
		"| a | m |":                            "2 cells",
		"| a | m | `x.TestX` | more |":         "4 cells",
		"| a | m | `.TestX` |":                 "`.TestX` names no test",
		"| a | m | `/\"one\"` |":               "names no test",
		"| a | m | `x.testX` |":                "names no test",
		"| a | m | `x.TestX/one` |":            "names no test",
		"| a | m | `x.TestX`; control: `.T` |": "names no test",
		"| a | m | `x.TestX`, `make fuzz` |":   "names no test",
	} {
		if _, err := readRow(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}

// ran is what go test says of a package with some tests.
const ran = `{"Action":"start","Package":"p"}
{"Action":"output","Test":"TestGood","Output":"quiet\n"}
{"Action":"pass","Test":"TestGood/a_case"}
{"Action":"pass","Test":"TestGood"}
{"Action":"output","Test":"TestBad/one","Output":"loud\n"}
{"Action":"fail","Test":"TestBad/one"}
{"Action":"pass","Test":"TestBad/two"}
{"Action":"fail","Test":"TestBad"}
{"Action":"skip","Test":"TestSkipped"}
{"Action":"skip","Test":"TestHalf/one"}
{"Action":"pass","Test":"TestHalf/two"}
{"Action":"pass","Test":"TestHalf"}
{"Action":"run","Test":"TestCut"}
{"Action":"fail","Package":"p"}
`

func TestTable(t *testing.T) {
	ended, said, err := readEvents(strings.NewReader(ran))
	if err != nil || said != "loud\n" {
		t.Fatalf("said %q, %v", said, err)
	}
	r := results{found: map[function]declared{{"p", "TestVM"}: {tag: "vm"}}, tags: []string{"long"}, of: map[source]outcomes{{"p", ""}: ended}}
	for _, name := range []string{"TestGood", "TestBad", "TestSkipped", "TestHalf", "TestCut"} {
		r.found[function{"p", name}] = declared{}
	}
	for text, want := range map[string]verdict{
		"p.TestGood": passed, `p.TestGood/"a case"`: passed, `p.TestGood/"another"`: missing, "p.TestBad": failed, `p.TestBad/"two"`: failed,
		"p.TestSkipped": skipped, "p.TestHalf": skipped, `p.TestHalf/"two"`: skipped, "p.TestCut": failed, "p.TestNone": missing, "p.TestVM": notRun,
	} {
		tests, err := references("`" + text + "`")
		if err != nil {
			t.Fatal(err)
		}
		if got := r.verdict(tests[0]); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	for _, c := range []struct {
		cell, end string
		wrong     bool
	}{
		{"`p.TestGood`", "1 rows, 1 refused, 1 positive controls accepted, 0 not run", false},
		{"`p.TestGood`; control: `p.TestVM`", "1 rows, 1 refused, 0 positive controls accepted, 1 not run", false},
		{"`p.TestGood`, `p.TestVM`", "1 rows, 0 refused, 0 positive controls accepted, 1 not run", false},
		{"`p.TestGood`; control: `p.TestBad`", "1 rows, 1 refused, 0 positive controls accepted, 0 not run", true},
		{"`p.TestSkipped`; control: `p.TestGood`", "1 rows, 0 refused, 1 positive controls accepted, 0 not run", true},
		{"`p.TestVM`, `p.TestNone`", "1 rows, 0 refused, 0 positive controls accepted, 0 not run", true},
	} {
		read, err := readRow("| a | m | " + c.cell + " |")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := printTable(&out, []row{read}, r); (err != nil) != c.wrong || !strings.HasSuffix(out.String(), "\n"+c.end+"\n") {
			t.Errorf("%s: %v\n%s", c.cell, err, &out)
		}
	}
}

func TestBatches(t *testing.T) {
	read, err := readRow("| a | m | `p.TestA`, `.TestB/\"one\"`, `/\"two\"`, `.TestLong`, `.TestVM`, `.TestNone`; control: `p.TestA`, `q.TestA` |")
	if err != nil {
		t.Fatal(err)
	}
	found := map[function]declared{{"p", "TestA"}: {}, {"p", "TestB"}: {}, {"p", "TestLong"}: {tag: "long"}, {"p", "TestVM"}: {tag: "vm"}, {"q", "TestA"}: {}}
	var got []string
	for _, b := range batches([]row{read}, found, []string{"long"}) {
		got = append(got, b.String())
	}
	if want := []string{"p: TestA TestB", "p: TestLong (long)", "q: TestA"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
