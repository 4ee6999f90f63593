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
	"time"
)

// A downloader fetches files over HTTP.
type downloader struct {
	files    []file
	mirrors  []string                             // URLs of folders, each ending in /
	progress func(file string, done, total int64) // may be nil
	stall    time.Duration                        // how long to wait for a next byte before giving a mirror up
}

var errStalled = errors.New("no byte came for too long")

// download puts the files that dir lacks, or holds altered, into dir, which it
// makes if need be. A file is tried on each mirror in turn.
func (d downloader) download(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range d.files {
		if f.verify(dir) == nil {
			continue
		}
		var failed error
		for _, m := range d.mirrors {
			err := d.fetch(ctx, m+f.name, dir, f)
			if err == nil {
				failed = nil
				break
			}
			if ctx.Err() != nil {
				return err
			}
			if failed != nil {
				err = fmt.Errorf("%w; %w", failed, err)
			}
			failed = err
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// fetch writes what url serves to a temporary file in dir and renames that to
// f.name once its SHA-256 is right. Otherwise nothing stays behind.
func (d downloader) fetch(ctx context.Context, url, dir string, f file) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(d.stall, func() { cancel(errStalled) })
	defer watch.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept-Encoding", "identity") // the .gz as it is, not unpacked on the way
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return because(ctx, err) // names the URL itself
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}

	tmp, err := os.CreateTemp(dir, f.name+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // finds nothing after the rename
	defer tmp.Close()
	hash := sha256.New()
	count := &counter{f: f, progress: d.progress, tick: func() { watch.Reset(d.stall) }}
	count.Write(nil)
	n, err := io.Copy(io.MultiWriter(tmp, hash, count), io.LimitReader(resp.Body, f.size+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: after %d of %d bytes: %w", url, n, f.size, because(ctx, err))
	case n < f.size:
		return fmt.Errorf("%s: truncated: %d of %d bytes", url, n, f.size)
	case hex.EncodeToString(hash.Sum(nil)) != f.sha256:
		return fmt.Errorf("%s: SHA-256 is not that of MNIST", url)
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(dir, f.name))
}

// because returns why ctx was cancelled, if it was, and err otherwise.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// A counter reports the bytes written to it.
type counter struct {
	f        file
	done     int64
	progress func(file string, done, total int64)
	tick     func()
}

func (c *counter) Write(p []byte) (int, error) {
	c.done += int64(len(p))
	c.tick()
	if c.progress != nil {
		c.progress(c.f.name, c.done, c.f.size)
	}
	return len(p), nil
}
