package terminal

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/cmd/train/internal/traintest"
)

// steps returns a bar of a total of steps.
func steps(terminal *os.File, total int64, began time.Time) *bar {
	return &bar{terminal: terminal, what: "epoch 10/100", total: total, began: began, rate: func(v float64) string { return fmt.Sprintf("%.0f steps/s", v) }}
}

// TestBarFits draws a bar on terminals of each width, with lines between: it takes the last row,
// and leaves nothing.
func TestBarFits(t *testing.T) {
	for _, columns := range []int{1, 12, 40, 80, 120, 200} {
		s := traintest.NewScreen(t, columns)
		p := &Progress{bar: steps(s.Tty, 100_000, time.Now())}
		set := func(done int64) { p.draw(func() error { return p.bar.set(done) }) }
		var want []string
		for i := range 4 {
			for tick := range 3 {
				set(int64(10_000*i + tick))
			}
			if rows := s.Show(); len(rows) > len(want)+1 || columns >= 12 && !strings.HasPrefix(rows[len(rows)-1], "epoch 10/10"[:min(columns-1, 11)]) {
				t.Errorf("%d columns: the bar in %q", columns, rows)
			}
			line := fmt.Sprintf("line %d", i)
			traintest.OK(t, p.Print(s.Tty, line+"\n"))
			for chunk := range slices.Chunk([]rune(line), columns) {
				want = append(want, strings.TrimRight(string(chunk), " "))
			}
			if rows := s.Show(); !slices.Equal(rows, want) {
				t.Errorf("%d columns: %q, want %q", columns, rows, want)
			}
		}
		set(100_000)
		if rows := s.Show(); !slices.Equal(rows, want) {
			t.Errorf("%d columns: %q after the last step, want %q", columns, rows, want)
		}
		if p.err != nil {
			t.Error(p.err)
		}
	}
}

// TestBarFollowsTheWindow resizes a terminal between two draws, a minute after the bar began.
func TestBarFollowsTheWindow(t *testing.T) {
	s := traintest.NewScreen(t, 120)
	b := steps(s.Tty, 100, time.Now().Add(-time.Minute))
	b.what = "epoch"
	for columns, want := range map[int]string{
		60: "epoch  50% |████████████            |  1 steps/s, 1m0s left", 40: "epoch  50%  1 steps/s, 1m0s left", 33: "epoch  50%",
		120: "epoch  50% |███████████████               |  1 steps/s, 1m0s left", 8: "epoch",
	} {
		s.Resize(columns)
		traintest.OK(t, b.set(50))
		if rows := s.Show(); len(rows) != 1 || rows[0] != want && columns > 8 || !strings.HasPrefix(rows[0], "epoch") || len([]rune(rows[0])) >= columns {
			t.Errorf("%d columns: %q, want %q", columns, rows, want)
		}
	}
}

func TestDumbTerminal(t *testing.T) {
	s := traintest.NewScreen(t, 80)
	for name, want := range map[string]*os.File{"xterm": s.Tty, "": s.Tty, "dumb": nil} {
		t.Setenv("TERM", name)
		if terminalOf(s.Tty) != want {
			t.Errorf("TERM=%s: is a terminal to draw on: %v", name, want == nil)
		}
	}
}

// TestDownloadBar shows a download of a known size, and one of an unknown size.
func TestDownloadBar(t *testing.T) {
	s := traintest.NewScreen(t, 100)
	d := NewDownloadBar(s.Tty)
	for _, c := range []struct {
		file        string
		done, total int64
		want        string
	}{
		{"images.gz", 0, 10 << 20, ""},
		{"images.gz", 5 << 20, 10 << 20, "images.gz  50%"},
		{"images.gz", 10 << 20, 10 << 20, ""},
		{"labels.gz", 0, -1, ""},
		{"labels.gz", 3000, -1, "labels.gz"},
	} {
		d.Update(c.file, c.done, c.total)
		if rows := s.Show(); c.want != "" && (len(rows) != 1 || !strings.Contains(rows[0], c.want)) || len(rows) > 1 {
			t.Errorf("%s, %d of %d: %q", c.file, c.done, c.total, rows)
		}
	}
	traintest.OK(t, d.Finish())
	if rows := s.Show(); len(rows) != 0 {
		t.Errorf("left: %q", rows)
	}
}

// TestBarOfNoTerminal draws to a closed terminal.
func TestBarOfNoTerminal(t *testing.T) {
	gone, err := os.Open(os.DevNull)
	if err == nil {
		err = gone.Close()
	}
	traintest.OK(t, err)
	b := steps(gone, 10, time.Now())
	if err := b.set(1); err == nil {
		t.Error("no error")
	}
	if err := b.erase(); err == nil {
		t.Error("no error")
	}
}

// TestFinishWhileAnnounced prints from another goroutine while a bar finishes, for the race
// detector.
func TestFinishWhileAnnounced(t *testing.T) {
	s := traintest.NewScreen(t, 100)
	p := NewProgress(s.Tty, 10, func() int64 { return 10 })
	printed := make(chan error)
	go func() { printed <- p.Print(s.Tty, "interrupted\n") }()
	if err := errors.Join(p.Finish(), <-printed); err != nil {
		t.Error(err)
	}
	s.Show()
}
