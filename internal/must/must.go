// Package must is for tests.
package must

import (
	"errors"
	"os"
	"testing"
)

// OK ends the test if one of the errors is not nil. Only the goroutine of the test may call it.
func OK(t testing.TB, errs ...error) {
	if err := errors.Join(errs...); err != nil {
		t.Helper() // which takes long
		t.Fatal(err)
	}
}

// Read returns what is in a file.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	OK(t, err)
	return text
}
