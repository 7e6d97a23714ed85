package ekcert

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"slices"
)

// The makers of TPMs, as people call them.
const (
	AMD       = "AMD"
	Atmel     = "Atmel"
	Google    = "Google"
	Infineon  = "Infineon"
	Intel     = "Intel"
	Microsoft = "Microsoft"
	Nationz   = "Nationz"
	Nuvoton   = "Nuvoton"
	ST        = "STMicroelectronics"
)

// CA is one of a maker of TPMs, or one that certified some for it. That it is known says whose it is, and never that it is trusted: a
// policy holds the certificates that it trusts, byte by byte, and no list that moves.
type CA struct {
	Maker string `json:"maker"`
	// Name is the common name of its certificate, or the organisational unit where the other says only whose it is.
	Name string `json:"name"`
	// From and Until are the years between which the certificate is good; zero where no source says it.
	From  int `json:"from,omitempty"`
	Until int `json:"until,omitempty"`
	// Fingerprint is the SHA-256 of the certificate in DER, in hexadecimal digits.
	Fingerprint string `json:"sha256"`
	// Source is where its maker publishes it; empty where no address is known that lasts.
	Source string `json:"source,omitempty"`
}

// known are CAs whose fingerprints more than one list has. Tests hold them to Debian's package ruby-tpm-key-attestation, which has
// those of Microsoft's TrustedTpm.cab, and to go-tpm-tools, which has Google's; Intel's newer one is in neither.
var known = []CA{
	{AMD, "AMDTPM", 2014, 2039, "b73f14dea3bdaa0be87440de3fc718c771f2cbf8b7b2231c6ea228d3b20860ef", "https://ftpm.amd.com/pki/aia/264D39A23CEB5D5B49D610044EEBD121"},
	{AMD, "AMDTPM", 2016, 2041, "c2cb57bf723c174f166c5aa1dc64160981054bee18c70eb1debfc1518afa92d2", ""},
	{Atmel, "Atmel TPM Root Signing Module", 2010, 2040, "3784884ec83a8d7edbfb928ac878dc75c11451381c6a0cb27aaffb3171e0d33f", ""},
	{Google, "tpm_ek_v1_cloud_host_root-signer-0-2018-04-06T10:58:26-07:00 K:1, 1:Pw003HsFYO4:0:18", 2018, 2118, "9bd5285f8fb18502a7947e621ffd470266f49fcd3b73e19a190f690ad32a7caf", "https://pki.goog/cloud_integrity/tpm_ek_root_1.crt"},
	{Google, "tpm_ek_v1_cloud_host-signer-0-2020-10-22T14:02:08-07:00 K:1, 2:HBNpA3TPAbM:0:18", 2020, 2120, "5d8dbcf8c8053dd8ffad711b6219355032b7122c34cac0f90ccb49def69ec504", "https://pki.goog/cloud_integrity/tpm_ek_intermediate_2.crt"},
	{Google, "tpm_ek_v1_cloud_host-signer-0-2021-10-12T04:22:11-07:00 K:1, 3:nbvaGZFLcuc:0:18", 2021, 2121, "7132b6ea71101f6c51bb58f98c3798c19b65be510eca0344318900510b593178", "https://pki.goog/cloud_integrity/tpm_ek_intermediate_3.crt"},
	{Google, "EK/AK CA Root", 2022, 2122, "594759594b9b61524f6c8ef668f7177f7b9066bc0674f2f49fe9e052be78beb2", ""},
	{Google, "EK/AK CA Intermediate", 2022, 2122, "c84de8116dfaf5a908f21e810487791f5437e206d00ad8025050cca6bd2ff627", ""},
	{Infineon, "Infineon OPTIGA(TM) RSA Root CA", 2013, 2043, "899e35474c9807eb4c7f2f7a12da0028fb250cd02154d0009fca7d9c66574f3b", "https://pki.infineon.com/OptigaRsaRootCA/OptigaRsaRootCA.crt"},
	{Infineon, "Infineon OPTIGA(TM) ECC Root CA", 2013, 2043, "cfeb02fecd55ad7a73c6e1d11985d4c47dee248ab63dcb66091a2489660443c3", "https://pki.infineon.com/OptigaEccRootCA/OptigaEccRootCA.crt"},
	{Infineon, "IFX TPM EK Root CA", 2005, 2030, "7df2c3751c03ce003e99174d9cb2559f57a1b05b1920dd30bb6f8dfcf17f5e62", ""},
	{Infineon, "VeriSign Trusted Platform Module Root CA", 2005, 2045, "967bb3d4544ea2740fce338077e1f5a9ea3085667246e6b968294aa045a57549", ""},
	{Intel, "TPM EK root cert signing", 2014, 2049, "2e1b3ba79af56d758be51697621bc4b9e8cee0983db3e749c55eb9b37c6d2ae0", "https://upgrades.intel.com/content/CRL/ekcert/EKRootPublicKey.cer"},
	{Intel, "OnDie CA Root Cert Signing", 0, 0, "beb40bb7507b33967226aa80e084749fbb6593893c642e818d682e9a8d07fc24", "https://tsci.intel.com/content/OnDieCA/certs/OnDie_CA_RootCA_Certificate.cer"},
	{Microsoft, "Microsoft TPM Root Certificate Authority 2014", 2014, 2039, "870c7a35ceab3d59979f2c6a524042d404cb71518004350925fb2ced79a999da", ""},
	{Nationz, "Nationz TPM Root CA", 2017, 2047, "1293d71d6f61c86b98102fd3d4085ff12538f108e925489c0d545059e5f89c36", ""},
	{Nuvoton, "Nuvoton TPM Root CA 1110", 2015, 2035, "2782e51a95e86d9557fe4204316cf805bd6f5898f81f9732e944d742bcdc5f54", "https://www.nuvoton.com/security/NTC-TPM-EK-Cert/Nuvoton%20TPM%20Root%20CA%201110.cer"},
	{Nuvoton, "Nuvoton TPM Root CA 1111", 2017, 2037, "e38c280f7c0e0b49f31efc7531032bb6a86c3fba4eb89beb1d510eaa4510ae4a", "https://www.nuvoton.com/security/NTC-TPM-EK-Cert/Nuvoton%20TPM%20Root%20CA%201111.cer"},
	{Nuvoton, "Nuvoton TPM Root CA 2110", 2015, 2035, "4aebe77a51ed29959a7f9f5e07a24a558dee8167f3985d724995a541c258dfda", "https://www.nuvoton.com/security/NTC-TPM-EK-Cert/Nuvoton%20TPM%20Root%20CA%202110.cer"},
	{Nuvoton, "Nuvoton TPM Root CA 2111", 2017, 2037, "cd8185ff8995ed09811970090a8c36fafab34ef87f47fa51fdb9ecf95c9c2e04", "https://www.nuvoton.com/security/NTC-TPM-EK-Cert/Nuvoton%20TPM%20Root%20CA%202111.cer"},
	{Nuvoton, "NTC TPM EK Root CA 01", 2012, 2032, "56b67007f448bd5c5746299fcdea9323971bbdaaefd8e3b9b84773abc888c90e", ""},
	{Nuvoton, "NTC TPM EK Root CA 02", 2012, 2032, "8fac94b462b37acb84431bdc71395585caf518c17f656051ff9c4347a4726ed9", ""},
	{Nuvoton, "NTC TPM EK Root CA ARSUF 01", 2014, 2034, "9e0434093fd0d4f8b927af1f4f6cffbd75f0584af4ade939bbd6851227fa4263", ""},
	{Nuvoton, "Nuvoton TPM Root CA 1013", 2015, 2035, "38f8c5012d1b1321e833376611612b5b1cde466574cabc67fd2262e3b8da2f6d", ""},
	{Nuvoton, "Nuvoton TPM Root CA 1014", 2017, 2037, "ad392726a92f62e5b7b112460c4e89f9fcbd523d08f39dcb928210ce8d4f676f", ""},
	{Nuvoton, "Nuvoton TPM Root CA 2010", 2015, 2035, "970b1cb098896f0d31be45dd299ed31f1640689f7c1618d7370cd71b6eb97560", ""},
	{Nuvoton, "Nuvoton TPM Root CA 2011", 2017, 2037, "ab6005053c48534c46f54d2afbbd300a99f7b0e3ab1786034cb0785ca081a7ba", ""},
	{ST, "STM TPM EK Root CA", 2009, 2039, "f8e37a86b689a20a6cc0c40cc3f81fb130fa9f44ce7ffa60d62590aaf87273a9", "https://secure.globalsign.com/cacert/stmtpmekroot.crt"},
	{ST, "STM TPM ECC Root CA 01", 2015, 2038, "c541d7e5b9e3f935621acbd403896225ec641036c9ae3b5f7ac793a606ff9b79", "https://secure.globalsign.com/cacert/stmtpmeccroot01.crt"},
	{ST, "GlobalSign Trusted Platform Module Root CA", 2009, 2049, "f27bf02c6e00c73d915eeb6a6a2f5fbf0c31ae0393149e6b5c31e41b113841c3", "https://secure.globalsign.com/cacert/gstpmroot.crt"},
	{ST, "GlobalSign Trusted Platform Module ECC Root CA", 2014, 2038, "5a8c7b5eb888cfce9322068e80e82b28b554ffeb7fdc9638dcb3763077401d26", "https://secure.globalsign.com/cacert/tpmeccroot.crt"},
}

// Known returns the CAs that are known, by makers.
func Known() []CA { return slices.Clone(known) }

// Find returns the known CA that a certificate is of, and whether there is one.
func Find(certificate *x509.Certificate) (CA, bool) {
	digest := sha256.Sum256(certificate.Raw)
	i := slices.IndexFunc(known, func(ca CA) bool { return ca.Fingerprint == hex.EncodeToString(digest[:]) })
	if i < 0 {
		return CA{}, false
	}
	return known[i], true
}
