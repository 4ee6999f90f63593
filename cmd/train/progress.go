package main

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// isTerminal says whether w is a terminal, where a bar can be drawn.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func newBar(w io.Writer, total int64, options ...progressbar.Option) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total, append(options,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true),
	)...)
}

// progress is the bar of a training run. It looks at the number of steps a few
// times a second, so that the steps themselves need not report. A nil progress
// draws nothing.
type progress struct {
	mu   sync.Mutex
	bar  *progressbar.ProgressBar
	done func() int64
	err  error // of the terminal
	stop chan struct{}
	wg   sync.WaitGroup
}

// newProgress starts a bar on w if that is a terminal.
func newProgress(w io.Writer, total int64, done func() int64) *progress {
	if !isTerminal(w) {
		return nil
	}
	p := &progress{bar: newBar(w, total, progressbar.OptionShowIts(), progressbar.OptionSetItsString("steps")), done: done, stop: make(chan struct{})}
	p.wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				p.draw(func() error { return p.bar.Set64(p.done()) })
			}
		}
	})
	return p
}

// draw runs f, which draws, by itself. finish returns its error.
func (p *progress) draw(f func() error) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, f())
}

func (p *progress) describe(text string) {
	p.draw(func() error { p.bar.Describe(text); return nil })
}

// clear makes room for a line of output; the bar comes back by itself.
func (p *progress) clear() {
	p.draw(func() error { return p.bar.Clear() })
}

// note writes a line to w, the bar's terminal where there is a bar, which comes back
// below it.
func (p *progress) note(w io.Writer, line string) (err error) {
	write := func() error { _, err = io.WriteString(w, line); return err }
	if p == nil {
		return write()
	}
	p.draw(func() error { return errors.Join(p.bar.Clear(), write()) })
	return err
}

// finish ends the bar and returns what failed in drawing it.
func (p *progress) finish() error {
	if p == nil {
		return nil
	}
	close(p.stop)
	p.wg.Wait()
	p.draw(func() error { return p.bar.Exit() })
	return p.err
}

// downloadBar shows the download of files: a bar each on a terminal, else a
// line each.
type downloadBar struct {
	w    io.Writer
	file string
	bar  *progressbar.ProgressBar
	err  error
}

func newDownloadBar(w io.Writer) *downloadBar { return &downloadBar{w: w} }

// update is data.Options.Progress.
func (d *downloadBar) update(file string, done, total int64) {
	if done == 0 || file != d.file {
		d.file = file
		if !isTerminal(d.w) {
			_, err := io.WriteString(d.w, "train: downloading "+file+"\n")
			d.err = errors.Join(d.err, err)
			return
		}
		d.bar = newBar(d.w, total, progressbar.OptionShowBytes(true), progressbar.OptionSetDescription(file))
	}
	if d.bar != nil {
		d.err = errors.Join(d.err, d.bar.Set64(done))
	}
}

func (d *downloadBar) finish() error { return d.err }
