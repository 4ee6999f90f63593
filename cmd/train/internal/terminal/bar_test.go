package terminal

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// steps returns a bar of a total of steps.
func steps(terminal *os.File, total int64, began time.Time) *bar {
	return &bar{terminal: terminal, what: "epoch 10/100", total: total, began: began, rate: func(v float64) string { return fmt.Sprintf("%.0f steps/s", v) }}
}

// TestBarFits draws a bar on terminals of each width, with lines between, which begin where it is erased.
func TestBarFits(t *testing.T) {
	for _, columns := range []int{1, 12, 40, 80, 120, 200} {
		s := traintest.NewTerminal(t, columns)
		p := &Progress{bar: steps(s.Tty, 100_000, time.Now())}
		for i := range 4 {
			p.draw(func() error { return p.bar.set(int64(10_000 * i)) })
			lines, bars := s.Show()
			if n := len([]rune(bars[0])); lines != "" || len(bars) != 1 || n >= columns || !strings.HasPrefix(bars[0], "epoch 10/10"[:min(columns-1, 11)]) {
				t.Errorf("%d columns: %q, and the bar %q", columns, lines, bars)
			}
			must.OK(t, p.Print(s.Tty, "line\n"))
			if lines, bars := s.Show(); lines != "line\n" || !slices.Equal(bars, []string{""}) {
				t.Errorf("%d columns: %q, and %q of the bar", columns, lines, bars)
			}
		}
		p.draw(func() error { return p.bar.set(100_000) })
		must.OK(t, p.Print(s.Tty, "end\n"))
		if lines, bars := s.Show(); lines != "end\n" || !slices.Equal(bars, []string{"", ""}) || p.err != nil {
			t.Errorf("%d columns: after the last step %q, %q, %v", columns, lines, bars, p.err)
		}
	}
}

// TestBarFollowsTheWindow resizes a terminal between two draws, a minute after the bar began.
func TestBarFollowsTheWindow(t *testing.T) {
	s := traintest.NewTerminal(t, 120)
	b := steps(s.Tty, 100, time.Now().Add(-time.Minute))
	b.what = "epoch"
	for columns, want := range map[int]string{
		60: "epoch  50% |████████████            |  1 steps/s, 1m0s left", 40: "epoch  50%  1 steps/s, 1m0s left", 33: "epoch  50%",
		120: "epoch  50% |███████████████               |  1 steps/s, 1m0s left", 9: "epoch  5",
	} {
		s.Resize(columns)
		must.OK(t, b.set(50))
		if _, bars := s.Show(); !slices.Equal(bars, []string{want}) {
			t.Errorf("%d columns: %q, want %q", columns, bars, want)
		}
	}
}

func TestDumbTerminal(t *testing.T) {
	s := traintest.NewTerminal(t, 80)
	for name, want := range map[string]*os.File{"xterm": s.Tty, "": s.Tty, "dumb": nil} {
		t.Setenv("TERM", name)
		if terminalOf(s.Tty) != want {
			t.Errorf("TERM=%s: is a terminal to draw on: %v", name, want == nil)
		}
	}
}

// TestDownloadBar shows a download of a known size, and one of an unknown size.
func TestDownloadBar(t *testing.T) {
	s := traintest.NewTerminal(t, 100)
	d := NewDownloadBar(s.Tty)
	for _, c := range []struct {
		file        string
		done, total int64
		want        string
	}{
		{"images.gz", 0, 10 << 20, "images.gz   0%"},
		{"images.gz", 5 << 20, 10 << 20, "images.gz  50%"},
		{"images.gz", 10 << 20, 10 << 20, ""},
		{"labels.gz", 0, -1, "labels.gz"},
		{"labels.gz", 3000, -1, "labels.gz"},
	} {
		d.Update(c.file, c.done, c.total)
		if _, bars := s.Show(); len(bars) != 1 || !strings.HasPrefix(bars[0], c.want) || c.want == "" && bars[0] != "" {
			t.Errorf("%s, %d of %d: %q", c.file, c.done, c.total, bars)
		}
	}
	must.OK(t, d.Finish())
	if _, bars := s.Show(); !slices.Equal(bars, []string{""}) {
		t.Errorf("left: %q", bars)
	}
}

// TestFinishWhileAnnounced prints from another goroutine while a bar finishes, for the race
// detector.
func TestFinishWhileAnnounced(t *testing.T) {
	s := traintest.NewTerminal(t, 100)
	p := NewProgress(s.Tty, 10, func() int64 { return 10 })
	printed := make(chan error)
	go func() { printed <- p.Print(s.Tty, "interrupted\n") }()
	must.OK(t, p.Finish(), <-printed)
	s.Show()
}
