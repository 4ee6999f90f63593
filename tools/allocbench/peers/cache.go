package peers

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"mlpool/allocator"
)

// A cache is the common part of both kinds of PyTorch's allocator; see [Torch].
type cache struct {
	allocator.Driver
	growth
	settings Settings

	mu             sync.Mutex // guards what follows
	small, large   *pool      // that serve requests
	pools          []*pool    // all, large ones before small ones; the first two are the default pool's
	live           map[uintptr]*block
	queues         []*queue  // of streams with unfinished events
	idle           []uintptr // events for the next record
	reserved, peak int64     // bytes
	searches       int64     // for a free large block
	closing        bool      // all work is done
}

// growth gets memory for a cache and releases it.
type growth interface {
	// fit removes from p the free block that serves a request of size bytes on s. It
	// returns nil if there is none.
	fit(p *pool, s allocator.Stream, size int64) *block
	// grow gets memory and returns a free block of at least size bytes, in no set.
	grow(p *pool, s allocator.Stream, size int64) (*block, error)
	// splits reports whether a rest of rest bytes becomes a block after a request of size bytes.
	splits(p *pool, size, rest int64) bool
	// release releases the memory of a free block as far as possible.
	release(b *block) error
}

// A queue is the events of one stream in the order of their records.
type queue struct {
	stream allocator.Stream
	waits  []wait
}

// A wait is a freed block with one of the events that it waits for.
type wait struct {
	event uintptr
	block *block
}

func newCache(d allocator.Driver, o Settings) *cache {
	c := &cache{Driver: d, settings: o, live: map[uintptr]*block{}}
	c.UsePool(0)
	return c
}

// UsePool implements [Peer].
func (c *cache) UsePool(private int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.pools, func(p *pool) bool { return p.private == private })
	if i < 0 {
		i = len(c.pools)
		c.pools = append(c.pools, newPool(false, private), newPool(true, private))
	}
	c.large, c.small = c.pools[i], c.pools[i+1]
}

// MallocAsync returns bytes > 0 bytes of memory for work on stream. It is malloc in
// PyTorch: it frees blocks whose events are done, then takes the best fit, or memory from
// the driver. If that has none, it releases all unused segments and asks once more.
func (c *cache) MallocAsync(bytes int64, stream uintptr) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.processEvents(); err != nil {
		return 0, err
	}
	size := c.settings.round(bytes)
	p := c.large
	if size <= smallBytes {
		p = c.small
	} else {
		c.searches++
	}
	b := c.fit(p, stream, size)
	if b == nil {
		var err error
		if b, err = c.more(p, stream, size); err != nil {
			return 0, err
		}
	}
	if c.splits(p, size, b.size-size) {
		p.free.insert(b.split(size))
	}
	b.free, b.asked = false, bytes
	c.live[b.addr] = b
	return b.addr, nil
}

// more returns a free block of at least size bytes, with memory from the driver.
func (c *cache) more(p *pool, s allocator.Stream, size int64) (*block, error) {
	if err := c.collectGarbage(); err != nil {
		return nil, err
	}
	b, err := c.grow(p, s, size)
	if err == nil || !outOfMemory(err) {
		return b, err
	}
	if err := c.releaseFree(0); err != nil {
		return nil, err
	}
	return c.grow(p, s, size)
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

// FreeAsync frees memory after the work on stream. A free has no stream in PyTorch, so a
// stream other than the block's is recorded, as PyTorch's users must do. The block is free
// once a MallocAsync finds the events on all recorded streams done.
func (c *cache) FreeAsync(addr, stream uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.live[addr]
	if b == nil {
		return fmt.Errorf("peers: free of %#x, which is not handed out", addr)
	}
	b.record(stream)
	delete(c.live, addr)
	for _, s := range b.uses {
		event, err := c.mark(s)
		if err != nil {
			return err
		}
		q := c.queue(s)
		q.waits = append(q.waits, wait{event, b})
	}
	b.events, b.uses = len(b.uses), nil
	if b.events == 0 {
		b.search = c.searches
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
	return event, c.RecordEvent(event, s)
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

// processEvents frees the blocks whose events are done. It queries the events of a stream
// in order, up to the first unfinished one.
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
				first.block.search = c.searches
				first.block.pool.put(first.block)
			}
		}
	}
	c.queues = slices.DeleteFunc(c.queues, func(q *queue) bool { return len(q.waits) == 0 })
	return nil
}

// releaseFree releases unused memory of the default pool, large blocks first, until at most keep bytes
// are reserved. A private pool keeps its memory as long as its graph, here until the peer is closed.
func (c *cache) releaseFree(keep int64) error {
	if err := c.synchronizeEvents(); err != nil {
		return err
	}
	pools := c.pools[:2]
	if c.closing {
		pools = c.pools
	}
	for _, p := range pools {
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

// drain waits for the work on s, as cudaFree does. cuMemUnmap does not.
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

// hold adds bytes to the reserved ones.
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

// ClosePool implements allocator.AsyncDriver. No block may be live, and all work must be done.
func (c *cache) ClosePool() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.live) > 0 {
		return fmt.Errorf("peers: closed with %d blocks handed out", len(c.live))
	}
	c.closing = true
	err := c.releaseFree(0)
	for _, event := range c.idle {
		err = errors.Join(err, c.FreeEvent(event))
	}
	c.idle = nil
	return err
}
