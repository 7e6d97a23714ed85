package inspect

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Build is a finished image, with what it was made of.
type Build struct {
	// Image is the file of the raw disk.
	Image string
	// Contents name the image, and the Go modules of the programs in it.
	Contents lock.Contents
	// LockFile is the lock that it was built from, and Lock what of it is this image's.
	LockFile string
	Lock     lock.Lock
	// Profiles are the profiles that were added. Kubernetes reports that the Kubernetes bundle is in it.
	Profiles   []string
	Kubernetes bool
	// Commit is the checkout's commit, and Changed whether files differ from it; without a repository it is empty.
	Commit  string
	Changed bool
	// Sources and Definitions are digests of all files of the checkout and of the user's folder, as image/build makes them; the
	// latter may be empty.
	Sources, Definitions string
}

// Vouched says who vouches for a build, for its provenance.
type Vouched struct {
	// Builder is the URI of who runs the build, and Invocation that of this run, or empty.
	Builder, Invocation string
}

// File is a file to be written.
type File struct {
	Name    string
	Content []byte
}

// Describe returns what lies beside a finished image: its SBOM in two forms, the measurement document that names all, for a boot, and the
// provenance of all four. Their names are the image's with other endings.
func (b Build) Describe(boot pcrs.Boot, release measurements.Release, by Vouched) ([]File, error) {
	var files []File
	add := func(ending string, content []byte) pcrs.Digest {
		files = append(files, File{lock.Beside(b.Image, ending), content})
		digest := sha256.Sum256(content)
		return digest[:]
	}
	sbom, err := b.Lock.SPDX(b.Contents)
	if err != nil {
		return nil, err
	}
	release.SBOM = add(lock.SPDXEnding, sbom)
	if sbom, err = b.Lock.CycloneDX(b.Contents); err != nil {
		return nil, err
	}
	release.CycloneDX = add(lock.CycloneDXEnding, sbom)
	if release.Lock, err = Digest(b.LockFile); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	document, err := MeasureFile(b.Image, boot, release)
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	text, err := document.Encode()
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	names := []string{filepath.Base(b.Image), filepath.Base(files[0].Name), filepath.Base(files[1].Name), filepath.Base(lock.Beside(b.Image, lock.DocumentEnding))}
	digests := []pcrs.Digest{document.Image.Disk, release.SBOM, release.CycloneDX, add(lock.DocumentEnding, text)}
	provenance, err := b.provenance(release, by, names, digests)
	if err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	add(lock.ProvenanceEnding, provenance)
	return files, nil
}
