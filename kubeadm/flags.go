package kubeadm

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// FlagsFile is where kubeadm leaves the flags of a kubelet for its unit, which reads the file as an environment.
const FlagsFile = "/var/lib/kubelet/kubeadm-flags.env"

// maxFlags bounds FlagsFile, in bytes.
const maxFlags = 64 << 10

// flagsLine is all that kubeadm writes there (cmd/kubeadm/app/phases/kubelet, WriteKubeletArgsToFile): one variable, in double quotes.
var flagsLine = regexp.MustCompile(`^KUBELET_KUBEADM_ARGS="((?:[^"\\\n]|\\[^\n])*)"\n?$`)

// pluginFlags name a folder of programs that the kubelet runs as root, and the file that says with which arguments and environment.
var pluginFlags = []string{"image-credential-provider-bin-dir", "image-credential-provider-config"}

// flagWords are the flags in the variable as systemd hands them to the kubelet: at spaces, and without quotes (systemd.exec(5),
// systemd.service(5)). Of what is escaped only a double quote is taken: kubeadm escapes nothing else, and a backslash anywhere
// is one that systemd removes later than this looks.
func flagWords(variable string) ([]string, error) {
	variable = strings.ReplaceAll(variable, `\"`, `"`)
	if strings.ContainsAny(variable, `\'$`+"`") {
		return nil, errors.New("a backslash, a single quote, a dollar sign or a backtick")
	}
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for _, r := range variable {
		switch {
		case r == '"':
			quoted, begun = !quoted, true
		case !quoted && unicode.IsSpace(r):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	if quoted {
		return nil, errors.New("a quote that does not end")
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// CheckFlags refuses a FlagsFile that says more than kubeadm does: an environment may name libraries for the programs that the
// kubelet starts, and a flag a folder of programs. The verity root's are what they may come from.
func CheckFlags(text []byte) error {
	if len(text) > maxFlags {
		return fmt.Errorf("%s: %d bytes: at most %d are read", FlagsFile, len(text), maxFlags)
	}
	m := flagsLine.FindSubmatch(text)
	if m == nil {
		return errors.New(FlagsFile + ": want the one variable that kubeadm writes")
	}
	words, err := flagWords(string(m[1]))
	if err != nil {
		return fmt.Errorf("%s: %w", FlagsFile, err)
	}
	for i, word := range words {
		name, folder, hasValue := strings.Cut(word, "=")
		// The kubelet takes an underscore for a hyphen (k8s.io/component-base, cli/flag, WordSepNormalizeFunc), and one hyphen before
		// a name for two.
		if !slices.Contains(pluginFlags, strings.ReplaceAll(strings.TrimLeft(name, "-"), "_", "-")) {
			continue
		}
		if !hasValue && i+1 < len(words) {
			folder = words[i+1]
		}
		if !strings.HasPrefix(folder, "/usr/") || strings.Contains(folder, "..") {
			return fmt.Errorf("%s: plugins by %.80q: want a path below /usr", FlagsFile, folder)
		}
	}
	return nil
}
