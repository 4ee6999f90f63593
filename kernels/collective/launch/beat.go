package launch

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// beats is how often a rank says that it lives within the time after which one that says
// nothing counts as lost.
const beats = 30

// start hears the other ranks, and has them hear this one.
func (w *World) start(within time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, p := range w.peers {
		go w.listen(p)
		all.Go(func() { w.beat(ctx, p, within) })
	}
	w.quiet = func() {
		cancel()
		all.Wait()
	}
}

// beat says to a peer that this rank lives, and ends all ranks if nothing is heard of the
// peer for so long. That is counted in beats: time for which this process was stopped as
// well, as by Ctrl-Z or scontrol suspend, is one of them.
func (w *World) beat(ctx context.Context, p *peer, within time.Duration) {
	every := time.NewTicker(within / beats)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-p.bye:
			return
		case <-ctx.Done():
			return
		}
		if p.missed.Add(1) > beats {
			w.end(fmt.Errorf("rank %d is silent: nothing came from %s for %v: see whether it is stopped there (state T in ps), or its host or network is down",
				p.rank, p.process, within), nil) // where it goes on later, it is to know
			_ = p.conn.SetReadDeadline(time.Now()) // ends listen; of a connection that is closed it has ended
			return
		}
		_ = p.send(message{Kind: "alive"}) // where it is gone, listen says so
	}
}
