//go:build race

package allocator_test

func init() { raceEnabled = true }
