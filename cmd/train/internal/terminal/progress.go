package terminal

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"mlpool/internal/text"
)

// Progress is the bar of a training. It asks for the number of steps a few times a second, so that
// steps need not report. A nil Progress draws nothing.
type Progress struct {
	mu   sync.Mutex // held while drawing
	bar  *bar
	done func() int64
	err  error // of the terminal; guarded by mu
	stop chan struct{}
	wg   sync.WaitGroup
}

// NewProgress starts a bar on w, or returns nil if w is not a terminal.
func NewProgress(w io.Writer, total int64, done func() int64) *Progress {
	terminal := terminalOf(w)
	if terminal == nil {
		return nil
	}
	rate := func(perSecond float64) string { return fmt.Sprintf("%.0f steps/s", perSecond) }
	p := &Progress{bar: &bar{terminal: terminal, total: total, rate: rate, began: time.Now()}, done: done, stop: make(chan struct{})}
	draw := func() { p.draw(func() error { return p.bar.set(p.done()) }) }
	draw()
	p.wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				draw()
			}
		}
	})
	return p
}

// draw runs f, which draws, while nothing else draws. Finish returns its error.
func (p *Progress) draw(f func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, f())
}

// Describe sets what is written before the bar.
func (p *Progress) Describe(what string) {
	if p != nil {
		p.draw(func() error { p.bar.what = what; return nil })
	}
}

// Print writes a line to w above the bar.
func (p *Progress) Print(w io.Writer, line string) (err error) {
	if p == nil {
		_, err = io.WriteString(w, line)
		return err
	}
	p.draw(func() error {
		cleared := p.bar.erase()
		_, err = io.WriteString(w, line)
		return cleared
	})
	return err
}

// Finish ends the bar and returns the errors of drawing it.
func (p *Progress) Finish() error {
	if p == nil {
		return nil
	}
	close(p.stop)
	p.wg.Wait()
	p.draw(p.bar.erase)
	p.mu.Lock() // a signal may be announced meanwhile
	defer p.mu.Unlock()
	return p.err
}

// downloadBar shows downloads: a bar for each file on a terminal, else a line.
type downloadBar struct {
	w    io.Writer
	file string
	bar  *bar
	err  error
}

func NewDownloadBar(w io.Writer) *downloadBar { return &downloadBar{w: w} }

// Update implements Progress of data.Options.
func (d *downloadBar) Update(file string, done, total int64) {
	if done == 0 || file != d.file {
		d.file = file
		terminal := terminalOf(d.w)
		if terminal == nil {
			_, err := io.WriteString(d.w, "train: downloading "+file+"\n")
			d.err = errors.Join(d.err, err)
			return
		}
		rate := func(perSecond float64) string { return text.Bytes(int64(perSecond)) + "/s" }
		d.bar = &bar{terminal: terminal, what: file, total: total, rate: rate, began: time.Now()}
	}
	if d.bar != nil {
		d.err = errors.Join(d.err, d.bar.set(done))
	}
}

// Finish ends the bar and returns the errors of drawing it.
func (d *downloadBar) Finish() error {
	if d.bar != nil {
		d.err = errors.Join(d.err, d.bar.erase())
	}
	return d.err
}
