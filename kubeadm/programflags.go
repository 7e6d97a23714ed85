package kubeadm

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// controlPlanePrograms are the programs that kubeadm starts on a control plane, by where a ClusterConfiguration has their flags.
var controlPlanePrograms = map[string]string{
	"apiServer": "kube-apiserver", "controllerManager": "kube-controller-manager", "scheduler": "kube-scheduler", "etcd.local": "etcd",
}

// ProgramFlags returns the flags that a ClusterConfiguration adds to those of kubeadm, by the program's name, in the order in which it
// has them.
func ProgramFlags(clusterConfiguration []byte) (map[string][]string, error) {
	var config map[string]any
	if err := yaml.Unmarshal(clusterConfiguration, &config); err != nil {
		return nil, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	flags := map[string][]string{}
	for field, program := range controlPlanePrograms {
		list, ok := at(config, field+".extraArgs").([]any)
		if !ok && at(config, field+".extraArgs") != nil {
			return nil, fmt.Errorf("ClusterConfiguration: %s.extraArgs: want a list", field)
		}
		for i, argument := range list {
			name, err := Argument(argument)
			if err != nil {
				return nil, fmt.Errorf("ClusterConfiguration: %s.extraArgs[%d]: %w", field, i, err)
			}
			flags[program] = append(flags[program], "--"+name+"="+argumentValue(argument))
		}
	}
	return flags, nil
}

// KubeletFlags returns the flags in FlagsFile, which CheckFlags takes.
func KubeletFlags(text []byte) ([]string, error) {
	if err := CheckFlags(text); err != nil {
		return nil, err
	}
	return flagWords(string(flagsLine.FindSubmatch(text)[1]))
}
