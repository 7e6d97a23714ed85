package wire

// WipeFiles clears the content of those files of Proceed that only their owner may read: keys.
func WipeFiles(files []*File) {
	for _, f := range files {
		if f.GetMode()&0o077 == 0 {
			clear(f.GetContent())
		}
	}
}
