package pemcert

import (
	"reflect"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	const one = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n"
	const two = "-----BEGIN CERTIFICATE-----\nAQIE\n-----END CERTIFICATE-----\n"
	for name, c := range map[string]struct {
		text string
		want [][]byte
		says string
	}{
		"one":                  {one, [][]byte{{1, 2, 3}}, ""},
		"two":                  {one + two, [][]byte{{1, 2, 3}, {1, 2, 4}}, ""},
		"two, with words":      {"subject=one\n" + one + "\nsubject=two\n" + two + "\n \n", [][]byte{{1, 2, 3}, {1, 2, 4}}, ""},
		"nothing":              {"", nil, "no certificate"},
		"blanks":               {" \n", nil, "no certificate"},
		"words":                {"none", nil, "no certificate"},
		"a key":                {one + strings.ReplaceAll(two, "CERTIFICATE", "PRIVATE KEY"), nil, "PRIVATE KEY"},
		"the last cut off":     {one + two[:40], nil, "cut off"},
		"the last hardly seen": {one + two[:8], nil, "cut off"},
		"the first cut off":    {one[:30] + "\n" + two, nil, "cut off"},
		"words after":          {one + "end", nil, "cut off"},
	} {
		got, err := Split([]byte(c.text))
		if !reflect.DeepEqual(got, c.want) || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
