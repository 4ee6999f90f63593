package launch

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// beats is how many heartbeats a rank sends within the time after which a silent rank counts
// as lost.
const beats = 30

// start listens to the other ranks, and sends them heartbeats.
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

// beat sends heartbeats to a peer, and ends all ranks if nothing comes from the peer for the
// time within. It counts its own beats rather than the clock: while this process is stopped
// too, as by Ctrl-Z or scontrol suspend, no time counts.
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
				p.rank, p.process, within), nil) // tell the peer too, in case it continues
			_ = p.conn.SetReadDeadline(time.Now()) // ends listen, unless the connection is closed already
			return
		}
		_ = p.send(message{Kind: "alive"}) // if it is gone, listen reports it
	}
}
