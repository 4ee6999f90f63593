package allocator

import "sync"

// A gate lets calls in until it is closed, which waits for those inside. So what
// is done after close runs beside no call.
type gate struct {
	mu     sync.Mutex
	inside int
	empty  chan struct{} // made by close, closed when no call is inside
}

// enter lets a call in, to be ended with leave, or is ErrClosed. It never waits.
func (g *gate) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.empty != nil {
		return ErrClosed
	}
	g.inside++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.empty != nil {
		close(g.empty)
	}
}

// close lets no more calls in and waits for those inside. It says whether it is
// the first.
func (g *gate) close() (first bool) {
	g.mu.Lock()
	if first = g.empty == nil; first {
		g.empty = make(chan struct{})
		if g.inside == 0 {
			close(g.empty)
		}
	}
	g.mu.Unlock()
	<-g.empty
	return first
}
