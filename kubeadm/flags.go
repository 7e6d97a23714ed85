package kubeadm

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// FlagsFile is where kubeadm leaves the flags of a kubelet for its unit, which reads the file as an environment.
const FlagsFile = "/var/lib/kubelet/kubeadm-flags.env"

// maxFlags bounds FlagsFile, in bytes.
const maxFlags = 64 << 10

// flagsLine is all that kubeadm writes there (cmd/kubeadm/app/phases/kubelet, WriteKubeletArgsToFile): one variable, in double quotes.
var flagsLine = regexp.MustCompile(`^KUBELET_KUBEADM_ARGS="((?:[^"\\\n]|\\[^\n])*)"\n?$`)

// pluginsFlag names a folder of programs that the kubelet runs as root.
var pluginsFlag = regexp.MustCompile(`(?:^|\s)["'\\]*-{1,2}image-credential-provider-bin-dir(?:=|\s+)?(\S*)`)

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
	for _, flag := range pluginsFlag.FindAllStringSubmatch(string(m[1]), -1) {
		if folder := flag[1]; !strings.HasPrefix(folder, "/usr/") || strings.Contains(folder, "..") {
			return fmt.Errorf("%s: programs in %.80q: want a folder below /usr", FlagsFile, folder)
		}
	}
	return nil
}
