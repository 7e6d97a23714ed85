package firmware

import "github.com/hullmark/hullmark/image/efi"

var (
	guidLZMASection   = efi.MustGUID("ee4e5898-3914-4259-9d6e-dc7bd79403cf")
	guidTcg2Dxe       = efi.MustGUID("fdff263d-5f68-4591-87ba-b768f445a9af")
	guidTcg2Pei       = efi.MustGUID("a0c98b77-cba5-4bb8-993b-4af6ce33ece4")
	guidUiApp         = efi.MustGUID("462caa21-7614-4503-836e-8ab6f4662331")
	guidShell         = efi.MustGUID("7c04a583-9e3e-4f1c-ad65-e05268d0b4d1")
	guidSecureBootDxe = efi.MustGUID("f0e6a44f-7195-41c3-ac64-54f202cd0a21")
)
