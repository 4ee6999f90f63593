package main

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/traintest"
)

// TestCompareInterrupted compares only the epochs that all allocators have done.
func TestCompareInterrupted(t *testing.T) {
	for _, c := range []struct {
		after     string // the line at which the run is interrupted
		want, not string
	}{
		{"custom  epoch 1/3", "nothing to compare yet: not every allocator has done an epoch\n", "losses"},
		{"malloc  epoch 1/3", "losses, 19 steps identical identical", "medians"},
		{"plan    epoch 2/3", "losses, 19 steps identical identical", "differ from"},
		{"plan    epoch 2/3", "one epoch each, the first, which includes costs that occur once;\nnot enough epochs to tell which is faster: run at least 7\n", "range"},
		{"custom  epoch 2/3", "one epoch each, the second, interleaved;\nnot enough epochs to tell which is faster: run at least 7\n", "range"},
		{"epoch 3/3", "losses, 38 steps identical identical", "medians"},
	} {
		path, _ := traintest.WriteConfig(t, "cpu", "")
		ctx, cancel := context.WithCancel(context.Background())
		stdout := &traintest.CancelAfter{Text: c.after, Cancel: cancel}
		var stderr bytes.Buffer
		code := runProcess(ctx, []string{"-compare", path}, stdout, &stderr)
		cancel()
		text := regexp.MustCompile(" +").ReplaceAllString(stdout.String(), " ")
		if code != exit.CodeInterrupted || !strings.Contains(text, c.want) || strings.Contains(text, c.not) {
			t.Errorf("after %q: exit code %d, want %q and no %q in:\n%s%s", c.after, code, c.want, c.not, stdout, &stderr)
		}
	}
}

// TestOneEpoch calls no single epoch a median.
func TestOneEpoch(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	traintest.SetConfig(t, path, "num_epochs = 3", "num_epochs = 1")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{path}, " segments, the only epoch, which includes costs that occur once: "},
		{[]string{"-compare", path}, " one epoch each, the first, which includes costs that occur once; not enough epochs to tell which is faster: run at least 7 "},
	} {
		code, stdout, stderr := train(c.args...)
		if code != 0 || !strings.Contains(flat(stdout), c.want) {
			t.Errorf("%q: exit code %d, %s, stdout:\n%s", c.args, code, stderr, stdout)
		}
	}
}
