package kubeadm

// JoinTemplate writes what all JoinConfigurations of a cluster share: that of JoinDocuments with an empty node name and an empty token.
func JoinTemplate(profile Profile) ([]byte, error) {
	c := joinOf(JoinParams{})
	if profile == Slow {
		c.Timeouts = patient()
		c.NodeRegistration.slow()
	}
	return stream(c)
}
