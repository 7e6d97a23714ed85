package powercut

import "bytes"

// Unaligned is a disk as a program has it through the kernel: it reads parts of sectors, too, and keeps nothing of its caller's.
type Unaligned struct{ *Disk }

// WriteAt writes whole sectors.
func (d Unaligned) WriteAt(b []byte, at int64) (int, error) {
	return d.Disk.WriteAt(bytes.Clone(b), at)
}

// Sync flushes the disk.
func (d Unaligned) Sync() error { return d.Flush() }

// ReadAt reads parts of sectors, too.
func (d Unaligned) ReadAt(b []byte, at int64) (int, error) {
	start := at / Sector * Sector
	whole := make([]byte, (at+int64(len(b))-start+Sector-1)/Sector*Sector)
	if _, err := d.Disk.ReadAt(whole, start); err != nil {
		return 0, err
	}
	return copy(b, whole[at-start:]), nil
}
