//go:build long

package firstboot

// All pairs of faults are tried.
func init() { everyPair = 1 }
