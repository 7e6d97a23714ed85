package pcrs

import "fmt"

// cpioTrailer ends an archive as the stub writes it: unlike in its headers, the
// hexadecimal digit of the name's length is upper-case.
const cpioTrailer = "070701" + "00000000" + "00000000" + "00000000" + "00000000" + "00000001" + "00000000" + "00000000" +
	"00000000" + "00000000" + "00000000" + "00000000" + "0000000B" + "00000000" + "TRAILER!!!\x00\x00\x00\x00"

// espFile is a file of the ESP by its name in its folder.
type espFile struct {
	name string
	data []byte
}

// archive is the cpio archive that the stub makes of files: the directories down
// to the given one, of which only the last has a mode of its own, then the files.
// Inode numbers count from 1 in every archive (systemd, src/boot/cpio.c).
func archive(directory string, dirMode, fileMode int, files []espFile) []byte {
	inode := 0
	var out []byte
	add := func(mode int, name string, data []byte) {
		inode++
		out = append(out, newcHeader(inode, mode, len(data), name)...)
		out = pad4(append(out, data...))
	}
	for i, c := range directory {
		if c == '/' {
			add(0o40555, directory[:i], nil)
		}
	}
	add(0o40000|dirMode, directory, nil)
	for _, f := range files {
		add(0o100000|fileMode, directory+"/"+f.name, f.data)
	}
	return append(out, cpioTrailer...)
}

// extraArchive is the archive that the stub makes of one section.
func extraArchive(name string, data []byte) []byte {
	return archive(".extra", 0o555, 0o444, []espFile{{name, data}})
}

// newcHeader is a header of the newc format with one link and everything else
// that could vary at zero, in lower-case hexadecimal digits.
func newcHeader(inode, mode, size int, name string) []byte {
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	return pad4([]byte(header))
}

func pad4(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// names are the names of files.
func names(files []espFile) (out []string) {
	for _, f := range files {
		out = append(out, f.name)
	}
	return out
}
