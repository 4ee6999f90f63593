package explain

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"mlpool/allocator/observe"
	"mlpool/internal/text"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/replay"
)

// cardStep is how exactly the smallest card is found, as a share of it.
const cardStep = 1. / 256

// smallest returns the smallest memory of a device in which a contender finishes the trace. It is 0 if that is not
// known without the device, or is more than any device has. It is found by bisection: what is reserved without a limit
// is enough, and less than what is live is not.
func smallest(ctx context.Context, t *observe.Requests, c bench.Contender) (int64, error) {
	if c.Driver {
		return 0, nil
	}
	enough, _, err := replay.Peak(ctx, t, t.Events, c.Open, bench.NullBytes)
	if bench.OutOfMemory(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	few := t.Peak - 1
	for enough-few > max(int64(float64(enough)*cardStep), bench.MiB) {
		middle := few + (enough-few)/2
		switch _, _, err := replay.Peak(ctx, t, t.Events, c.Open, middle); {
		case err == nil:
			enough = middle
		case bench.OutOfMemory(err):
			few = middle
		default:
			return 0, err
		}
	}
	return enough, nil
}

// cardSizes are those of devices that people have, in bytes.
var cardSizes = []int64{24 << 30, 40 << 30, 80 << 30, 141 << 30}

// A fit is the smallest device of each allocator for one trace.
type fit struct {
	name   string
	live   int64
	needed []int64 // by allocator; 0: unknown
}

// PrintCards prints the smallest device for each trace and allocator; device is that of a snapshot. For several
// traces, such as of one job with growing batches, it also prints the trace with most live bytes that fits devices
// of common sizes.
func PrintCards(ctx context.Context, w io.Writer, paths []string, device int, among []bench.Contender) error {
	among = slices.DeleteFunc(slices.Clone(among), func(c bench.Contender) bool { return c.Driver || c.Name == bench.NoAllocator })
	longest := len("smallest device")
	for _, path := range paths {
		longest = max(longest, len(replay.TraceName(filepath.Base(path))))
	}
	header := fmt.Sprintf("%-*s %9s", longest, "smallest device", "live")
	for _, c := range among {
		header += fmt.Sprintf(" %*s", max(9, len(c.Name)), c.Name)
	}
	var fits []fit
	var notes strings.Builder
	for _, path := range paths {
		t, _, err := replay.Events(path, device)
		if err != nil {
			return err
		}
		if len(fits) == 0 { // not before an error
			if _, err := fmt.Fprintln(w, header); err != nil {
				return err
			}
		}
		f := fit{name: replay.TraceName(filepath.Base(path)), live: t.Peak}
		if n := t.Notes(); n != nil {
			fmt.Fprintf(&notes, "%s: %s\n", f.name, strings.Join(n, "; "))
		}
		line := fmt.Sprintf("%-*s %9s", longest, f.name, text.Bytes(f.live))
		for _, c := range among {
			bytes, err := smallest(ctx, t, c)
			if err != nil {
				return err
			}
			f.needed = append(f.needed, bytes)
			needed := "–"
			if bytes > 0 {
				needed = text.Bytes(bytes)
			}
			line += fmt.Sprintf(" %*s", max(9, len(c.Name)), needed)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
		fits = append(fits, f)
	}
	if _, err := io.WriteString(w, notes.String()); err != nil || len(fits) < 2 {
		return err
	}
	lines := fmt.Sprintf("\n%-16s", "what fits")
	for _, size := range cardSizes {
		lines += fmt.Sprintf(" %*s", longest, text.Bytes(size))
	}
	for i, c := range among {
		lines += fmt.Sprintf("\n%-16s", c.Name)
		for _, size := range cardSizes {
			lines += fmt.Sprintf(" %*s", longest, largestFit(fits, i, size))
		}
	}
	lines += "\n"
	_, err := io.WriteString(w, lines)
	return err
}

// largestFit names the trace with most live bytes that allocator i finishes on a device of size bytes.
func largestFit(fits []fit, i int, size int64) string {
	best := fit{name: "–"}
	for _, f := range fits {
		if f.needed[i] > 0 && f.needed[i] <= size && f.live > best.live {
			best = f
		}
	}
	return strings.TrimSuffix(best.name, "-expandable")
}
