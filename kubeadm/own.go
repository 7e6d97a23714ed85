package kubeadm

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// signingDuration is the flag that says how long the certificates of kubelets are good for.
const signingDuration = "cluster-signing-duration"

// CheckDocuments holds an operator's own documents for kubeadm init to what Hullmark relies on: what Kinds says that nobody
// else sets is as in the documents that InitDocuments writes, and certificates of kubelets live no longer than CertificateLife.
// The error names the field or the flag.
func CheckDocuments(documents []byte) error {
	ours, err := InitDocuments(Params{
		NodeName: "example", AdvertiseAddress: netip.AddrFrom4([4]byte{192, 0, 2, 1}),
		ServiceSubnet: MustParseSubnets("10.96.0.0/12"), PodSubnet: MustParseSubnets("10.244.0.0/16"),
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"InitConfiguration", "ClusterConfiguration", "KubeletConfiguration"} {
		var want, got map[string]any
		if err := errors.Join(Find(ours, name, &want), Find(documents, name, &got)); err != nil {
			return err
		}
		if err := Kinds[name].check(want, got); err != nil {
			return fmt.Errorf("kubeadm documents: %s: %w", name, err)
		}
	}
	return nil
}

// check compares one document with ours.
func (k Kind) check(ours, theirs map[string]any) error {
	if theirs["apiVersion"] != k.API {
		return fmt.Errorf("apiVersion: want %s, got %.80v", k.API, theirs["apiVersion"])
	}
	for _, field := range slices.Sorted(maps.Keys(k.Owned)) {
		if k.Owned[field] != "" {
			continue // The operator's own document is where he says it.
		}
		want, got := at(ours, field), at(theirs, field)
		if !same(want, got) && !(want == nil && got == anyhow[field]) {
			return fmt.Errorf("%s: %s", field, must(want, got))
		}
	}
	for _, list := range slices.Sorted(maps.Keys(k.Arguments)) {
		if err := checkArguments(at(ours, list), at(theirs, list), k.Arguments[list]); err != nil {
			return fmt.Errorf("%s: %w", list, err)
		}
	}
	return nil
}

// anyhow are values that kubeadm takes where a document says nothing.
var anyhow = map[string]any{"etcd.local.dataDir": EtcdData, "certificatesDir": pkiDir}

// at finds a field by its path; nil where there is none, or an empty object.
func at(document map[string]any, path string) any {
	name, below, deeper := strings.Cut(path, ".")
	object, isObject := document[name].(map[string]any)
	switch {
	case deeper:
		return at(object, below)
	case isObject && len(object) == 0:
		return nil
	}
	return document[name]
}

// same tells whether a field says what ours does. A list may hold more.
func same(want, got any) bool {
	ours, isList := want.([]any)
	theirs, _ := got.([]any)
	if !isList {
		return reflect.DeepEqual(want, got)
	}
	return !slices.ContainsFunc(ours, func(w any) bool { return !slices.Contains(theirs, w) })
}

func must(want, got any) string {
	if want == nil {
		return fmt.Sprintf("leave it out: Hullmark relies on what kubeadm does without it, got %.80v", got)
	}
	if got == nil {
		return fmt.Sprintf("it is missing: Hullmark relies on %v", want)
	}
	return fmt.Sprintf("Hullmark relies on %v, got %.80v", want, got)
}

// checkArguments compares a program's flags with ours. Each of ours has to be there, and those that are taken are nobody else's.
func checkArguments(ours, theirs any, taken map[string]string) error {
	want, err := values(ours)
	if err != nil {
		return err
	}
	given, err := values(theirs)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		hint, owned := taken[name]
		for _, value := range given[name] {
			if err := checkArgument(name, value, want[name], owned && hint == ""); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if given[name] == nil {
			return fmt.Errorf("%s: %s", name, must(fmt.Sprintf("%q", want[name][0]), nil))
		}
	}
	return nil
}

// checkArgument compares one flag with what of it ours have.
func checkArgument(name, value string, ours []string, taken bool) error {
	switch {
	case ours == nil && taken:
		return errors.New(must(nil, value))
	case ours == nil:
		return nil
	case name == signingDuration:
		return checkDuration(value)
	case value != ours[0]:
		return errors.New(must(fmt.Sprintf("%q", ours[0]), fmt.Sprintf("%q", value)))
	}
	return nil
}

// values are a program's flags by name, each with all its values.
func values(list any) (map[string][]string, error) {
	all, ok := list.([]any)
	if !ok && list != nil {
		return nil, errors.New("want a list of objects with name and value")
	}
	found := map[string][]string{}
	for i, a := range all {
		name, err := Argument(a)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		found[name] = append(found[name], argumentValue(a))
	}
	return found, nil
}

// checkDuration refuses certificates of kubelets that live longer than the records count with.
func checkDuration(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > CertificateLife {
		return fmt.Errorf("want a duration of at most %v, got %.80q: nobody counts with longer certificates", CertificateLife, text)
	}
	return nil
}

// argumentPattern is how the flags of Kubernetes' programs and of etcd are named.
var argumentPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// Argument returns the name of an object of a list of flags, as programs read it: an underscore is a hyphen. It refuses what is
// no flag with a value, and flags that switch an API off: admission policies are of one.
func Argument(argument any) (string, error) {
	object, _ := argument.(map[string]any)
	name, _ := object["name"].(string)
	name = strings.ReplaceAll(name, "_", "-")
	if _, isText := object["value"].(string); !argumentPattern.MatchString(name) || object["value"] != nil && !isText {
		return "", errors.New("want an object with name and value, the name of lower-case letters, digits and hyphens")
	}
	if name != "runtime-config" {
		return name, nil
	}
	for one := range strings.SplitSeq(argumentValue(argument), ",") {
		if api, value, is := strings.Cut(one, "="); is && value != "true" {
			return "", fmt.Errorf("runtime-config: %.80s: want it true: Hullmark's admission policies need Kubernetes' own APIs", api)
		}
	}
	return name, nil
}

func argumentValue(argument any) string {
	object, _ := argument.(map[string]any)
	value, _ := object["value"].(string)
	return value
}
