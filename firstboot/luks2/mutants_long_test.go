//go:build long

package luks2_test

func init() { randomMutants = 1_000_000 }
