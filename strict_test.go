package hullmark

import (
	"strings"
	"testing"
)

func TestDecodeStrict(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"the value":       {`{"a": {"b": 1}}`, ""},
		"spaces after it": {"{\"a\": {\"b\": 1}} \n", ""},
		"too long":        {`{"a": {"b": 1}}` + strings.Repeat(" ", 50), "65 bytes, want at most 64"},
		"unknown field":   {`{"a": {"c": 1}}`, `unknown field "c"`},
		"two values":      {`{"a": {"b": 1}} {}`, "data after the end"},
		"rubbish after":   {`{"a": {"b": 1}}x`, "data after the end"},
		"cut":             {`{"a": {"b": 1`, "cut off"},
		"empty":           {" ", "empty"},
		"another type":    {`{"a": {"b": "1"}}`, `string at byte 15 where another type is wanted, in field "a.b"`},
	} {
		var v struct {
			A struct {
				B int `json:"b"`
			} `json:"a"`
		}
		switch err := DecodeStrict([]byte(c.text), 64, &v); {
		case err == nil && c.says == "":
			if v.A.B != 1 {
				t.Errorf("%s: read %+v", name, v)
			}
		case err == nil || c.says == "" || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
