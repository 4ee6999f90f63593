//go:build linux && cgo && race

package main

func init() { raceEnabled = true }
