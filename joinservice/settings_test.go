package joinservice_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

func TestSettings(t *testing.T) {
	want := joinservice.Settings{ControlPlaneEndpoint: "[2001:db8::1]:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}, Names: []string{"*.example.net", "2001:db8::7"}, Profile: kubeadm.Slow}
	encoded, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := joinservice.ParseSettings(encoded)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestSettingsRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field":   `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.0/12"],"profile":"","more":1}`,
		"data after it":   `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.0/12"],"profile":""}{}`,
		"no endpoint":     `{"profile":""}`,
		"no port":         `{"controlPlaneEndpoint":"a","networks":["10.96.0.0/12"],"profile":""}`,
		"port 0":          `{"controlPlaneEndpoint":"a:0","networks":["10.96.0.0/12"],"profile":""}`,
		"a number":        `{"controlPlaneEndpoint":"192.0.2.01:6443","networks":["10.96.0.0/12"],"profile":""}`,
		"a URL":           `{"controlPlaneEndpoint":"https://a:6443","networks":["10.96.0.0/12"],"profile":""}`,
		"a line feed":     `{"controlPlaneEndpoint":"a\nb:6443","networks":["10.96.0.0/12"],"profile":""}`,
		"no name":         `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.0/12"],"names":["a b"],"profile":""}`,
		"too many names":  `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.0/12"],"names":["a"` + strings.Repeat(`,"a"`, measurements.MaxNames) + `],"profile":""}`,
		"unknown profile": `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.0/12"],"profile":"fast"}`,
		"no networks":     `{"controlPlaneEndpoint":"a:6443","profile":""}`,
		"half a network":  `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.1/12"],"profile":""}`,
		"many networks":   `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.0/12"` + strings.Repeat(`,"10.96.0.0/12"`, joinservice.MaxNetworks) + `],"profile":""}`,
		"too long":        `{"controlPlaneEndpoint":"a:6443","networks":["10.96.0.0/12"],"profile":""}` + strings.Repeat(" ", joinservice.MaxSettings),
	} {
		if s, err := joinservice.ParseSettings([]byte(text)); err == nil {
			t.Errorf("%s: accepted as %+v", name, s)
		}
	}
	if _, err := (joinservice.Settings{}).Encode(); err == nil {
		t.Error("settings without an endpoint were encoded")
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add([]byte(`{"controlPlaneEndpoint":"192.0.2.1:6443","networks":["10.96.0.0/12"],"profile":"slow"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := joinservice.ParseSettings(data)
		if err != nil {
			return
		}
		encoded, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := joinservice.ParseSettings(encoded); err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%+v came back as %+v, %v", s, again, err)
		}
	})
}
