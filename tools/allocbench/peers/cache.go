package peers

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"mlpool/allocator"
)

// A cache is what both kinds of PyTorch's allocator have in common; see [Torch].
type cache struct {
	allocator.Driver
	growth

	mu             sync.Mutex // guards what follows
	small, large   pool
	live           map[uintptr]*block // handed out
	queues         []*queue           // of streams with events that are not done
	idle           []uintptr          // events for the next record
	reserved, peak int64              // bytes
	closing        bool               // the work on all memory is done
}

// growth is how a cache gets memory and gives it back.
type growth interface {
	// fit takes the free block out of p that serves a request of size bytes on s;
	// nil if none does.
	fit(p *pool, s allocator.Stream, size int64) *block
	// grow returns a free block of at least size bytes, of which some are new, and
	// which is in no set.
	grow(p *pool, s allocator.Stream, size int64) (*block, error)
	// splits says whether a rest of so many bytes is kept as a block.
	splits(p *pool, rest int64) bool
	// release gives the memory of a free block back, as far as that can be done.
	release(b *block) error
	// close gives back what is left when nothing is handed out.
	close() error
}

// A queue is the events of one stream in the order in which they were recorded.
type queue struct {
	stream allocator.Stream
	waits  []wait
}

// A wait is a freed block with one of the events that it waits for.
type wait struct {
	event uintptr
	block *block
}

func newCache(d allocator.Driver) *cache {
	return &cache{Driver: d, small: newPool(true), large: newPool(false), live: map[uintptr]*block{}}
}

// MallocAsync returns memory for work on stream; bytes is more than 0. It is
// malloc in PyTorch: blocks whose events are done become free, then the best fit
// is taken, or memory from the driver, and if there is none once more with all
// unused segments given back.
func (c *cache) MallocAsync(bytes int64, stream uintptr) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.processEvents(); err != nil {
		return 0, err
	}
	size := roundUp(bytes, minBlockBytes)
	p := &c.large
	if size <= smallBytes {
		p = &c.small
	}
	b := c.fit(p, stream, size)
	if b == nil {
		var err error
		if b, err = c.grow(p, stream, size); err != nil {
			if !outOfMemory(err) {
				return 0, err
			}
			if err := c.releaseFree(0); err != nil {
				return 0, err
			}
			if b, err = c.grow(p, stream, size); err != nil {
				return 0, err
			}
		}
	}
	if c.splits(p, b.size-size) {
		p.free.insert(b.split(size))
	}
	b.free = false
	c.live[b.addr] = b
	return b.addr, nil
}

// RecordStream implements [Peer].
func (c *cache) RecordStream(addr, stream uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.live[addr]
	if b == nil {
		return fmt.Errorf("peers: record of %#x, which is not handed out", addr)
	}
	b.record(stream)
	return nil
}

func (b *block) record(s allocator.Stream) {
	if s != b.stream && !slices.Contains(b.uses, s) {
		b.uses = append(b.uses, s)
	}
}

// FreeAsync frees memory after the work on stream. PyTorch knows no stream of a
// free: one that is not the block's own is recorded, as its users have to. An
// event is recorded on each such stream, and the block is free when a MallocAsync
// finds all of them done.
func (c *cache) FreeAsync(addr, stream uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.live[addr]
	if b == nil {
		return fmt.Errorf("peers: free of %#x, which is not handed out", addr)
	}
	b.record(stream)
	events := make([]uintptr, 0, len(b.uses))
	for _, s := range b.uses {
		event, err := c.mark(s)
		if err != nil {
			c.idle = append(c.idle, events...)
			return err
		}
		events = append(events, event)
	}
	delete(c.live, addr)
	for i, s := range b.uses {
		q := c.queue(s)
		q.waits = append(q.waits, wait{events[i], b})
	}
	b.events, b.uses = len(events), nil
	if b.events == 0 {
		b.pool.put(b)
	}
	return nil
}

// mark returns an event that marks the work queued on s so far.
func (c *cache) mark(s allocator.Stream) (event uintptr, err error) {
	if last := len(c.idle) - 1; last >= 0 {
		event, c.idle = c.idle[last], c.idle[:last]
	} else if event, err = c.NewEvent(); err != nil {
		return 0, err
	}
	if err := c.RecordEvent(event, s); err != nil {
		c.idle = append(c.idle, event)
		return 0, err
	}
	return event, nil
}

// queue returns the queue of s.
func (c *cache) queue(s allocator.Stream) *queue {
	for _, q := range c.queues {
		if q.stream == s {
			return q
		}
	}
	q := &queue{stream: s}
	c.queues = append(c.queues, q)
	return q
}

// processEvents frees the blocks whose events are done. An event is not looked
// at before those that were recorded on its stream earlier.
func (c *cache) processEvents() error { return c.settle(c.QueryEvent) }

// synchronizeEvents waits for all events and frees the blocks.
func (c *cache) synchronizeEvents() error {
	return c.settle(func(event uintptr) (bool, error) { return true, c.SyncEvent(event) })
}

func (c *cache) settle(done func(event uintptr) (bool, error)) error {
	for _, q := range c.queues {
		for len(q.waits) > 0 {
			first := q.waits[0]
			if ok, err := done(first.event); err != nil {
				return err
			} else if !ok {
				break
			}
			q.waits = q.waits[1:]
			c.idle = append(c.idle, first.event)
			if first.block.events--; first.block.events == 0 {
				first.block.pool.put(first.block)
			}
		}
	}
	c.queues = slices.DeleteFunc(c.queues, func(q *queue) bool { return len(q.waits) == 0 })
	return nil
}

// releaseFree gives unused memory back, the large blocks first, until no more
// than keep bytes are reserved.
func (c *cache) releaseFree(keep int64) error {
	if err := c.synchronizeEvents(); err != nil {
		return err
	}
	for _, p := range []*pool{&c.large, &c.small} {
		for _, b := range slices.Clone(p.free.blocks) {
			if c.reserved <= keep {
				return nil
			}
			if err := c.release(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain waits on the host for the work on s, as cudaFree does and cuMemUnmap does
// not.
func (c *cache) drain(s allocator.Stream) error {
	if c.closing { // the stream may be gone
		return nil
	}
	event, err := c.mark(s)
	if err != nil {
		return err
	}
	c.idle = append(c.idle, event)
	return c.SyncEvent(event)
}

// hold notes that bytes more, or less, are reserved.
func (c *cache) hold(bytes int64) {
	c.reserved += bytes
	c.peak = max(c.peak, c.reserved)
}

// PoolReserved implements allocator.AsyncDriver.
func (c *cache) PoolReserved() (current, peak int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reserved, c.peak, nil
}

// ResetPoolPeak implements allocator.AsyncDriver.
func (c *cache) ResetPoolPeak() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peak = c.reserved
	return nil
}

// TrimPool implements allocator.AsyncDriver. PyTorch's empty_cache is TrimPool(0).
func (c *cache) TrimPool(keep int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.releaseFree(keep)
}

// ClosePool implements allocator.AsyncDriver. Nothing may be handed out, and the
// work on the memory must be done. What the driver refuses another call tries
// again.
func (c *cache) ClosePool() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.live) > 0 {
		return fmt.Errorf("peers: closed with %d blocks handed out", len(c.live))
	}
	c.closing = true
	if err := c.releaseFree(0); err != nil {
		return err
	}
	if err := c.growth.close(); err != nil {
		return err
	}
	var kept []uintptr
	var errs []error
	for _, event := range c.idle {
		if err := c.FreeEvent(event); err != nil {
			kept, errs = append(kept, event), append(errs, err)
		}
	}
	c.idle = kept
	return errors.Join(errs...)
}
