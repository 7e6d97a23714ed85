package site

// Groups are the navigation of this repository's pages.
func Groups() []Group {
	return []Group{
		{"Begin", []string{"README.md", "docs/tour.md", "docs/install.md", "docs/terms.md"}},
		{"Images", []string{"docs/build.md", "docs/variants.md", "docs/node-network.md", "docs/formats.md", "docs/secure-boot.md", "docs/ci.md"}},
		{"Where they run", []string{"docs/bare-metal.md", "docs/azure.md", "docs/gcp.md", "docs/aws.md"}},
		{"Measurements", []string{
			"docs/measuring.md", "docs/firmware.md", "docs/launch.md", "docs/verify.md", "docs/export.md", "docs/measurement-format.md", "docs/library.md",
		}},
		{"Clusters", []string{
			"docs/boot.md", "docs/operate.md", "docs/update.md", "docs/upgrade.md", "docs/operations.md", "docs/addons.md", "docs/keepers.md", "docs/conditions.md",
		}},
		{"By declaration", []string{"docs/cluster-document.md", "docs/cluster-api.md", "docs/cluster-api-kubeadm.md"}},
		{"How it works", []string{"docs/architecture.md", "docs/protocol.md", "docs/state-disk.md", "docs/kubernetes.md", "docs/compatibility.md", "docs/dependencies.md"}},
		{"What is shown", []string{"docs/threats.md", "docs/tests.md", "docs/exploration.md", "docs/power-cuts.md", "docs/speed.md"}},
		{"The project", []string{"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}},
	}
}
