package wire

// ContentOf returns what looks a file's content up by its path; it is nothing for a file that is not there.
func ContentOf(files []*File) func(path string) []byte {
	return func(path string) []byte {
		for _, f := range files {
			if f.GetPath() == path {
				return f.GetContent()
			}
		}
		return nil
	}
}
