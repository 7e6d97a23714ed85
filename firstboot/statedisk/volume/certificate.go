package volume

import (
	"io"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/hullmark/hullmark/internal/pemcert"
)

// maxCertificate bounds a kubelet's file of a certificate and its key, in bytes.
const maxCertificate = 64 << 10

// clientCertificate is kubeadm.ClientCertificate below the root of the disk.
const clientCertificate = "var/lib/kubelet/pki/kubelet-client-current.pem"

// certificateEnds returns when the kubelet's newest client certificate ends, in Unix time, or 0 if there is none that can be
// read. The kubelet keeps each in a file of its own, and a link to the newest one beside them: of what the link says only the
// last name counts.
func certificateEnds(root *os.Root) int64 {
	folder, name := path.Split(clientCertificate)
	if target, err := root.Readlink(folder + name); err == nil {
		name = filepath.Base(target)
	}
	file, err := root.OpenFile(folder+name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxCertificate))
	if err != nil {
		return 0
	}
	ends, err := pemcert.End(text)
	if err != nil || ends.Unix() < 0 {
		return 0
	}
	return ends.Unix()
}
