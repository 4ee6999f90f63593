package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A downloader fetches files over HTTP.
type downloader struct {
	client   *http.Client
	files    []file
	mirrors  []string                             // URLs of folders, each ending in /
	progress func(file string, done, total int64) // may be nil
	stall    time.Duration                        // after this long without a byte, the next mirror is tried
	patience time.Duration                        // after this long without an answer, waiting is called
	waiting  func(host string)
}

// patience is how long a server may take to answer before Options.Waiting is called.
const patience = time.Second

// after calls say once d has passed, unless stop is called before. stop waits for a call of
// say that has begun; it may be called more than once.
func after(d time.Duration, say func()) (stop func()) {
	said := make(chan struct{})
	t := time.AfterFunc(d, func() { defer close(said); say() })
	return sync.OnceFunc(func() {
		if !t.Stop() {
			<-said
		}
	})
}

var errStalled = errors.New("no byte came for too long")

// download fetches the files that are missing or altered in dir, which it creates if
// necessary. It tries each mirror in turn.
func (d downloader) download(ctx context.Context, dir string) error {
	return fill(dir, d.files, func(f file) (failed error) {
		for _, m := range d.mirrors {
			err := d.fetch(ctx, m+f.name, dir, f)
			if err == nil || ctx.Err() != nil {
				return err
			}
			if failed != nil {
				err = fmt.Errorf("%w; %w", failed, err)
			}
			failed = err
		}
		return failed
	})
}

// fetch downloads f from url to dir.
func (d downloader) fetch(ctx context.Context, url, dir string, f file) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(d.stall, func() { cancel(errStalled) })
	defer watch.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept-Encoding", "identity") // keep the .gz packed
	answered := after(d.patience, func() { d.waiting(req.URL.Host) })
	resp, err := d.client.Do(req)
	answered()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%s: %w", url, cause)
	}
	if err != nil {
		return err // names the URL itself
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	b := &body{ctx: ctx, Reader: resp.Body, arrived: func(done int64) {
		watch.Reset(d.stall)
		if d.progress != nil {
			d.progress(f.name, done, f.size)
		}
	}}
	b.arrived(0)
	return f.store(dir, url, b)
}

// store copies r to dir/f.name if its SHA-256 is f's, and else leaves nothing behind. from
// names the source in errors.
func (f file) store(dir, from string, r io.Reader) error {
	tmp, err := os.CreateTemp(dir, f.name+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // after the rename there is none
	defer tmp.Close()
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(tmp, hash), io.LimitReader(r, f.size+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: after %d of %d bytes: %w", from, n, f.size, err)
	case n < f.size:
		return fmt.Errorf("%s: truncated: %d of %d bytes", from, n, f.size)
	case hex.EncodeToString(hash.Sum(nil)) != f.sha256:
		return fmt.Errorf("%s: SHA-256 is not that of MNIST", from)
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(dir, f.name))
}

// A body is the body of an HTTP response. It reports the bytes that have arrived, and fails
// with the cause of a cancelled ctx.
type body struct {
	io.Reader
	ctx     context.Context
	done    int64
	arrived func(done int64)
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.done += int64(n)
	b.arrived(b.done)
	if cause := context.Cause(b.ctx); err != nil && err != io.EOF && cause != nil {
		err = cause
	}
	return n, err
}
