//go:build long

package update

// All places are tried.
func init() { cuts = 1 << 20 }
