package hullmark

import "slices"

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
	// TrustTestParavisor and TrustTestConfidential are those of machines that a test's own root vouches for, in the place of a
	// processor's maker: whoever holds that root's key forges them. They meet no demand for a class above tpm but their own.
	TrustTestParavisor    TrustClass = "test-cvm-paravisor"
	TrustTestConfidential TrustClass = "test-cvm"
)

// promises say in one sentence each what a class protects against.
var promises = map[TrustClass]string{
	TrustTPM:              "protects against other tenants, the network, stolen disks and wrong images, not against the host that runs it",
	TrustProvider:         "protects against other tenants, the network, stolen disks and wrong images; the provider that certified its TPM could forge it",
	TrustParavisor:        "protects against the host, too; the maker of the virtual TPM inside the machine is trusted",
	TrustConfidential:     "protects against the host, too, and against all but the processor's maker",
	TrustTestParavisor:    "protects as tpm does: its evidence ends at a root for tests",
	TrustTestConfidential: "protects as tpm does: its evidence ends at a root for tests",
}

// Promise says in one sentence for people what the class protects against.
func (t TrustClass) Promise() string {
	if promise, ok := promises[t]; ok {
		return promise
	}
	return "protects against nothing"
}

// meets lists, for each class, the demands that it meets beside its own.
var meets = map[TrustClass][]TrustClass{
	TrustTPM:              {},
	TrustProvider:         {TrustTPM},
	TrustParavisor:        {TrustTPM, TrustProvider, TrustTestParavisor},
	TrustConfidential:     {TrustTPM, TrustProvider, TrustParavisor, TrustTestParavisor, TrustTestConfidential},
	TrustTestParavisor:    {TrustTPM},
	TrustTestConfidential: {TrustTPM, TrustTestParavisor},
}

// Valid reports whether the class is one of those that exist.
func (t TrustClass) Valid() bool { return meets[t] != nil }

// AtLeast reports whether the class protects against all that another one does. An unknown one protects against nothing, and
// nothing is as good as an unknown one.
func (t TrustClass) AtLeast(other TrustClass) bool {
	return t.Valid() && (t == other || slices.Contains(meets[t], other))
}

// Tested returns the class that evidence of class t earns if it ends at a root for tests; t itself for classes that need no root.
func (t TrustClass) Tested() TrustClass {
	switch t {
	case TrustParavisor:
		return TrustTestParavisor
	case TrustConfidential:
		return TrustTestConfidential
	case TrustProvider:
		return TrustTPM
	}
	return t
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
