package build

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/erofs"
	"github.com/hullmark/hullmark/internal/cache"
)

// The files of a file system in the store: its image, and where that has which content.
const (
	erofsName  = "root.erofs"
	erofsIndex = "index"
)

// earlierImages is how many of the store's images are looked at for content that need not be compressed again: those of a build
// and of what it was compared with.
const earlierImages = 3

// keptImages and keptTrees are how many the store keeps that were not used for an hour.
const (
	keptImages = 6
	keptTrees  = 12
)

// makeErofs makes a file system of a tree and keeps it in the store, where the images that were made last are taken from what
// is the same in them. The UUID comes from all that the file system holds, so that the image is a function of the tree alone.
func makeErofs(ctx context.Context, s cache.Store, m members, epoch int64) (dir string, hit bool, err error) {
	files, err := m.erofsFiles()
	if err != nil {
		return "", false, err
	}
	earlier, done := earlierErofs(s)
	defer done()
	image, err := erofs.Pack(ctx, files, time.Unix(epoch, 0), earlier...)
	if err != nil {
		return "", false, err
	}
	digest := image.Digest()
	dir, hit, err = s.Step("erofs", hex.EncodeToString(digest[:]), func(dir string) error {
		index, err := image.Index()
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(dir, erofsName))
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(f, 1<<20)
		return errors.Join(image.Write(w, contentUUID(digest)), w.Flush(), f.Close(), os.WriteFile(filepath.Join(dir, erofsIndex), index, 0o644))
	})
	if err != nil {
		return "", false, err
	}
	return dir, hit, s.Trim("erofs", keptImages)
}

// contentUUID makes a UUID (RFC 9562, version 8) from the first half of a digest.
func contentUUID(digest [32]byte) [16]byte {
	u := [16]byte(digest[:16])
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return u
}

// earlierErofs opens the images that were made last, newest first. One that is damaged is left out: it only saves time.
func earlierErofs(s cache.Store) (earlier []*erofs.Earlier, done func()) {
	type found struct {
		dir string
		at  time.Time
	}
	var all []found
	dirs, _ := filepath.Glob(filepath.Join(s.Root, "erofs", "[0-9a-f]*"))
	for _, dir := range dirs {
		if info, err := os.Stat(filepath.Join(dir, erofsIndex)); err == nil {
			all = append(all, found{dir, info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return b.at.Compare(a.at) })
	var open []*os.File
	for _, f := range all[:min(len(all), earlierImages)] {
		index, err := os.ReadFile(filepath.Join(f.dir, erofsIndex))
		if err != nil {
			continue
		}
		image, err := os.Open(filepath.Join(f.dir, erofsName))
		if err != nil {
			continue
		}
		open = append(open, image)
		if e, err := erofs.NewEarlier(index, image); err == nil {
			earlier = append(earlier, e)
		}
	}
	return earlier, func() {
		for _, f := range open {
			_ = f.Close()
		}
	}
}

// erofsFiles are the members as the file system takes them.
func (m members) erofsFiles() ([]erofs.File, error) {
	m.addParents()
	files := []erofs.File{{Name: ".", Mode: fs.ModeDir | 0o755}}
	for name, f := range m {
		file := erofs.File{Name: name, Mode: f.header.FileInfo().Mode(), UID: uint32(f.header.Uid), GID: uint32(f.header.Gid), Link: f.header.Linkname, Same: f.same}
		switch f.header.Typeflag {
		case tar.TypeReg, tar.TypeGNUSparse:
			file.Mode &^= fs.ModeType
			file.Size, file.Open, file.Link = f.header.Size, f.open, ""
		case tar.TypeDir, tar.TypeSymlink:
		default:
			return nil, fmt.Errorf("root tree: %s: a node's tree has no file of this kind (%c)", name, f.header.Typeflag)
		}
		for k, v := range f.header.PAXRecords {
			if attribute, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
				if file.Xattrs == nil {
					file.Xattrs = map[string]string{}
				}
				file.Xattrs[attribute] = v
			}
		}
		files = append(files, file)
	}
	return files, nil
}
