package hullmark

// TrustClass says against whom a machine's evidence holds. A platform is never given a class that its host could forge.
type TrustClass string

// The classes, from the weakest on.
const (
	// TrustTPM is the class of a machine with a TPM, be it emulated, virtual or discrete, of which nothing shows that the processor
	// keeps the host out.
	TrustTPM TrustClass = "tpm"
	// TrustProvider is that of a TPM with a provider's certificate. The provider can forge what the TPM says.
	TrustProvider TrustClass = "tpm-provider"
	// TrustParavisor is that of a confidential machine with a virtual TPM inside, which the hardware's report binds. Whoever wrote
	// that TPM's program is trusted.
	TrustParavisor TrustClass = "cvm-paravisor"
	// TrustConfidential is that of a confidential machine whose hardware measures all that decides.
	TrustConfidential TrustClass = "cvm"
)

// promises say in one sentence each what a class protects against.
var promises = map[TrustClass]string{
	TrustTPM:          "protects against other tenants, the network, stolen disks and wrong images, not against the host that runs it",
	TrustProvider:     "protects against other tenants, the network, stolen disks and wrong images; the provider that certified its TPM could forge it",
	TrustParavisor:    "protects against the host, too; the maker of the virtual TPM inside the machine is trusted",
	TrustConfidential: "protects against the host, too, and against all but the processor's maker",
}

// Promise says in one sentence for people what the class protects against.
func (t TrustClass) Promise() string {
	if promise, ok := promises[t]; ok {
		return promise
	}
	return "protects against nothing"
}

// AtLeast reports whether the class protects against all that another one does. An unknown one protects against nothing.
func (t TrustClass) AtLeast(other TrustClass) bool {
	order := map[TrustClass]int{TrustTPM: 1, TrustProvider: 2, TrustParavisor: 3, TrustConfidential: 4}
	return order[t] > 0 && order[t] >= order[other]
}

// PlatformTPM is the platform of which nothing is known but its TPM.
const PlatformTPM = "tpm"

// PlatformClaims is what verified evidence established of what a machine runs on. Cluster records hold it.
type PlatformClaims struct {
	// Trust is the class of the evidence.
	Trust TrustClass `json:"trust"`
	// Platform is the kind of evidence, such as PlatformTPM.
	Platform string `json:"platform"`
	// Product is the processor's, and TCB the version of its firmware as its maker writes it; both are empty where none was shown.
	Product string `json:"product,omitempty"`
	TCB     string `json:"tcb,omitempty"`
}

// The kinds of evidence, by which policies and records name platforms.
const (
	// PlatformSNP is an SEV-SNP guest whose report is made for each exchange, and PlatformTDX a TDX guest with such a quote.
	PlatformSNP = "snp"
	PlatformTDX = "tdx"
	// PlatformAzureSNP and PlatformAzureTDX are confidential machines on Azure, whose paravisor has the TPM.
	PlatformAzureSNP = "azure-snp"
	PlatformAzureTDX = "azure-tdx"
	// PlatformSVSM is an SEV-SNP guest with a TPM inside, in the service module at VMPL 0.
	PlatformSVSM = "svsm"
	// PlatformGCP, PlatformAWS and PlatformAzureTL are machines whose TPM is the provider's: Shielded and confidential VMs on
	// Google Cloud, NitroTPM, and Trusted Launch.
	PlatformGCP     = "gcp"
	PlatformAWS     = "aws"
	PlatformAzureTL = "azure-tl"
)
