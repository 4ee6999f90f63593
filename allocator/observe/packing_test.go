package observe

import (
	"context"
	"encoding/csv"
	"io"
	"strconv"
	"strings"
	"testing"
)

// writePacked writes a Packing of the requests that is not searched for long.
func writePacked(r *Requests, w io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return r.Pack(ctx).WriteMiniMalloc(w)
}

// TestPacking packs requests, and checks bytes, bound and the offsets that are written.
func TestPacking(t *testing.T) {
	for _, c := range []struct {
		name, buffers string // lower,upper,size
		want          int64
	}{
		{"nested", "0,9,4 1,8,2 2,3,1", 7},
		{"one after the other", "0,1,4 1,2,2 2,3,1", 4},
		{"a gap to be filled", "0,2,1 0,3,1 1,5,1 3,5,2 2,3,1", 3},
		{"more than live at once", "0,1,1 0,2,2 0,1,1 0,3,2 1,6,2 2,4,1 2,5,1 3,5,1 3,4,1 4,6,2 5,6,2", 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "lower,upper,size\n" + strings.ReplaceAll(c.buffers, " ", "\n") + "\n"
			r, err := Read(strings.NewReader(text), MostEvents)
			if err != nil {
				t.Fatal(err)
			}
			p := r.Pack(t.Context())
			if p.Bytes != c.want || p.Bound != c.want {
				t.Errorf("%d bytes and a bound of %d, want %d", p.Bytes, p.Bound, c.want)
			}
			var out strings.Builder
			if err := p.WriteMiniMalloc(&out); err != nil {
				t.Fatal(err)
			}
			lines, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
			if err != nil || len(lines) != 1+r.Allocs || strings.Join(lines[0], ",") != "id,lower,upper,size,offset" {
				t.Fatalf("%v: %s", err, out.String())
			}
			buffers := make([][5]int64, r.Allocs)
			for i, line := range lines[1:] {
				for k, field := range line {
					if buffers[i][k], err = strconv.ParseInt(field, 10, 64); err != nil {
						t.Fatal(err)
					}
				}
				const lower, upper, size, offset = 1, 2, 3, 4
				b := buffers[i]
				if b[offset] < 0 || b[offset]+b[size] > c.want {
					t.Errorf("%v does not lie in the range", b)
				}
				for _, o := range buffers[:i] {
					if o[lower] < b[upper] && b[lower] < o[upper] &&
						o[offset] < b[offset]+b[size] && b[offset] < o[offset]+o[size] {
						t.Errorf("%v and %v overlap", o, b)
					}
				}
			}
		})
	}
}
