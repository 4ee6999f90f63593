//go:build race && linux

package main

// The race detector multiplies memory.
func init() { maxResident *= 4 }
