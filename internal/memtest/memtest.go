// Package memtest tells a test how much memory an input costs.
package memtest

import "runtime"

// Cost returns how many bytes f allocates, all together: what it holds at any moment is less. What other goroutines allocate
// meanwhile counts, too.
func Cost(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
