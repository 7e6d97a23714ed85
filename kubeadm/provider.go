package kubeadm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
)

// providerFlag is the kubelet's flag that says what the machine's infrastructure calls it (k8s.io/kubernetes cmd/kubelet/app/options).
// It counts when the kubelet registers its node: the API takes no other one afterwards (pkg/apis/core/validation, ValidateNodeUpdate).
const providerFlag = "provider-id"

// putProviderID writes the one machine's provider ID into a template, in the place of any that is there: it would be every machine's.
func (p JoinParams) putProviderID(registration map[string]any) error {
	flags, err := kubeletFlags(registration)
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(flags), isProviderFlag)
	if p.ProviderID != "" {
		kept = append(kept, map[string]any{"name": providerFlag, "value": p.ProviderID})
	}
	if len(kept) > 0 {
		registration["kubeletExtraArgs"] = kept
	} else {
		delete(registration, "kubeletExtraArgs")
	}
	return nil
}

func kubeletFlags(registration map[string]any) ([]any, error) {
	flags, isList := registration["kubeletExtraArgs"].([]any)
	if !isList && registration["kubeletExtraArgs"] != nil {
		return nil, errors.New("kubeletExtraArgs: want a list of objects with name and value")
	}
	return flags, nil
}

func isProviderFlag(flag any) bool {
	name, err := Argument(flag)
	return err == nil && name == providerFlag
}

// CheckProviderID refuses documents for kubeadm join that would register the node with more than one provider ID, or with one that
// is none: a flag's value reaches the kubelet through a file that systemd reads. Whether they are documents for kubeadm join at all,
// kubeadm says.
func CheckProviderID(documents []byte) error {
	var c map[string]any
	if err := Find(documents, "JoinConfiguration", &c); errors.Is(err, errAbsent) {
		return nil
	} else if err != nil {
		return err
	}
	registration, _ := c["nodeRegistration"].(map[string]any)
	flags, err := kubeletFlags(registration)
	if err != nil {
		return err
	}
	found := 0
	for _, flag := range flags {
		if !isProviderFlag(flag) {
			continue
		}
		if id := argumentValue(flag); !hullmark.ValidProviderID(id) || found > 0 {
			return fmt.Errorf("kubeletExtraArgs: provider ID %.80q: want SCHEME://…, once", id)
		}
		found++
	}
	return nil
}
