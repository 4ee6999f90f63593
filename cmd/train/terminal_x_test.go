package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/traintest"
)

// TestTerminal trains with both outputs on a terminal: every line appears once, and no bar remains.
func TestTerminal(t *testing.T) {
	for _, columns := range []int{40, 120} {
		s := traintest.NewScreen(t, columns)
		path, _ := traintest.WriteConfig(t, "cpu", "")
		traintest.SetConfig(t, path, "num_epochs = 3", "num_epochs = 40")
		done := make(chan int)
		go func() {
			code := runProcess(context.Background(), []string{"-compare=custom,plan:bestfit", path}, s.Tty, s.Tty)
			_, _ = s.Tty.WriteString(string(traintest.EndOfOutput)) // where it fails, read does
			done <- code
		}()
		rows := s.Read()
		if code := <-done; code != 0 {
			t.Errorf("exit code %d", code)
		}
		text := strings.Join(rows, "\n")
		if strings.ContainsAny(text, "|█") {
			t.Errorf("%d columns: part of a bar is left in:\n%s", columns, text)
		}
		if n := len(regexp.MustCompile(`(?m)^(custom      |plan:bestfit)  epoch \d+/40`).FindAllString(text, -1)); n != 80 {
			t.Errorf("%d columns: %d lines of epochs, want 80:\n%s", columns, n, text)
		}
	}
}
