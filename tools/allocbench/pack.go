package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"mlpool/internal/text"
)

// packTrace searches, for the time of the options, for the least memory that holds the trace if all
// of it is known ahead. It prints what it found, and writes the offsets as the options say. An
// interrupted search prints and writes the best that it found.
func (o *options) packTrace(ctx context.Context, stdout io.Writer) error {
	t, doc, err := readTrace(o.trace, o.traceDevice)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, doc); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, o.pack)
	defer cancel()
	began := time.Now()
	p := t.Pack(limited)
	took := text.Duration(float64(time.Since(began)))
	verdict := "optimal"
	if p.Bytes > p.Bound {
		above := 100 * float64(p.Bytes-p.Bound) / float64(p.Bound)
		verdict = fmt.Sprintf("not known to be optimal, %.2f%% above the bound", above)
	}
	if o.exportMiniMalloc != "" {
		if err := writeFile(o.exportMiniMalloc, p.WriteMiniMalloc); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(stdout, "packed into %d bytes (%s), lower bound %d bytes: %s, after %s\n",
		p.Bytes, text.Bytes(p.Bytes), p.Bound, verdict, took)
	return err
}
