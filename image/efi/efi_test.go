package efi

import "testing"

func TestStoredForm(t *testing.T) {
	want := GUID{0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	if got := MustGUID("00112233-4455-6677-8899-aabbccddeeff"); got != want {
		t.Errorf("got %x, want %x", got, want)
	}
	if got := string(UTF16("PK\U0001f511")); got != "P\x00K\x00\x3d\xd8\x11\xdd" {
		t.Errorf("got %x", got)
	}
}
