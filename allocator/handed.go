package allocator

import "sync"

// handedOut is the blocks that a wrapper handed out, with what it needs to know
// of each. It does not trust Block.Size, which the caller may have changed.
type handedOut struct {
	mu     sync.Mutex
	blocks map[Block]*handed // by what key returns
	spares []*handed         // records not in use
}

// handed is one block that is handed out.
type handed struct {
	bytes   int64 // asked for
	stream  Stream
	tag     string
	shared  bool // another stream was named with RecordStream
	freeing bool // by a Free in progress
}

func newHandedOut() handedOut { return handedOut{blocks: map[Block]*handed{}} }

// key is what stays of a block whatever its holder writes into it. A block with
// another address is another one.
func key(b Block) Block {
	b.Size = 0
	return b
}

func (o *handedOut) add(b Block, h handed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var r *handed
	if last := len(o.spares) - 1; last >= 0 {
		r, o.spares = o.spares[last], o.spares[:last]
	} else {
		r = new(handed)
	}
	*r = h
	o.blocks[key(b)] = r
}

// take begins to free b, to be ended with done. It returns nil if b is not among
// the blocks. One that is being freed already is ErrDoubleFree.
func (o *handedOut) take(b Block) (*handed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.blocks[key(b)]
	if h == nil {
		return nil, nil
	}
	if h.freeing {
		return nil, ErrDoubleFree
	}
	h.freeing = true
	return h, nil
}

// done ends what take began: b is forgotten if it was freed, and with it h. By
// then its memory may have been handed out again.
func (o *handedOut) done(b Block, h *handed, freed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.freeing = false
	if !freed {
		return
	}
	if o.blocks[key(b)] == h {
		delete(o.blocks, key(b))
	}
	o.spares = append(o.spares, h)
}

// share notes that another stream uses b, unless it is being freed.
func (o *handedOut) share(b Block) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.blocks[key(b)]
	if h == nil || h.freeing {
		return ErrDoubleFree
	}
	h.shared = true
	return nil
}

func (o *handedOut) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.blocks)
}
