package observe

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"mlpool/allocator/internal/pack"
)

// A Packing gives each block of Requests an offset in one range of memory, such that no two
// overlap while both are live. No allocator that leaves blocks where they are needs less than an
// optimal one.
type Packing struct {
	Bytes int64 // that the range has
	Bound int64 // bytes: no packing needs less. The Packing is optimal if it needs as many

	blocks []pack.Interval
}

// Pack searches for a Packing of fewest bytes until it is known to be optimal or ctx is done, and
// returns the best one found. It packs sizes as asked for, without alignment, as if all streams
// were one.
func (r *Requests) Pack(ctx context.Context) *Packing {
	p := &Packing{blocks: r.lives()}
	p.Bytes, p.Bound = pack.Search(ctx, p.blocks, 0)
	return p
}

// WriteMiniMalloc writes what [Requests.WriteMiniMalloc] does, with each buffer's offset.
func (p *Packing) WriteMiniMalloc(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, "id,lower,upper,size,offset")
	for id, b := range p.blocks {
		fmt.Fprintf(out, "%d,%d,%d,%d,%d\n", id, b.Start, b.End, b.Size, b.Offset)
	}
	return out.Flush()
}
