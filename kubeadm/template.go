package kubeadm

// JoinTemplate writes what all JoinConfigurations of a cluster share: that of JoinDocuments with an empty node name and an empty token.
func JoinTemplate(profile Profile) ([]byte, error) {
	return stream(joinOf(JoinParams{Profile: profile}))
}
