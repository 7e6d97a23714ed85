package build

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/oci"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// joinServiceUser runs the join service in a container: it has to be nobody's on the host.
const joinServiceUser = "65532:65532"

// JoinServiceImage is the join service as a container image, for those who run it elsewhere than on their control planes: the
// program of the verity root and nothing else. What systemd would hand over is mounted at the same variables' paths.
func JoinServiceImage(program []byte) oci.Image {
	return oci.Image{
		Files:      []oci.File{{Name: "joinservice", Mode: 0o755, Content: program}},
		Path:       "/",
		Entrypoint: []string{"/joinservice"},
		User:       joinServiceUser,
		Env:        []string{"CREDENTIALS_DIRECTORY=/run/credentials", "STATE_DIRECTORY=/var/lib/hullmark-joinservice"},
	}
}

// writeJoinService writes that image beside the disk's.
func (j *job) writeJoinService() error {
	program, err := os.ReadFile(filepath.Join(j.programs, "node", "joinservice"))
	if err != nil {
		return err
	}
	err = atomicfile.Stream(filepath.Join(j.Out, j.ID+lock.JoinServiceEnding), atomicfile.Options{Mode: 0o644}, func(f *os.File) error {
		w := bufio.NewWriterSize(f, 1<<20)
		return errors.Join(oci.Write(w, JoinServiceImage(program), []string{KubernetesRepository + "/joinservice:" + j.imageVersion()}), w.Flush())
	})
	if err != nil {
		return fmt.Errorf("join service's image: %w", err)
	}
	return nil
}
