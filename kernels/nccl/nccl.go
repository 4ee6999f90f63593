// Package nccl has the collectives of NVIDIA GPUs. It loads libnccl.so.2 when it is
// first used, so that neither a build nor a program that uses one GPU needs NCCL.
//
// A goroutine polls each communicator for asynchronous errors (ncclCommGetAsyncError), and an
// error ends all ranks.
package nccl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// oldest is the first version with the ncclCommInitRankConfig that nccl.c calls.
const oldest = 21800

// An Error reports a call of NCCL that failed, or asynchronous work of it.
type Error struct {
	Op   string // the function of this package
	Code int    // ncclResult_t
	Text string
}

func (e *Error) Error() string {
	return fmt.Sprintf("nccl: %s: %s (NCCL error %d)", e.Op, e.Text, e.Code)
}

func check(op string, code int, comm uintptr) error {
	switch code {
	case 0:
		return nil
	case codeNone:
		if why := rawNone(); why != "" {
			return fmt.Errorf("nccl: %s: %s: install NCCL %s or later, or name its folder in LD_LIBRARY_PATH", op, why, VersionName(oldest))
		}
		v, _ := rawVersion()
		return fmt.Errorf("nccl: %s: %w by NCCL %s", op, errors.ErrUnsupported, VersionName(v))
	}
	return &Error{op, code, rawError(code, comm)}
}

// Version returns the library's version, 10000·major + 100·minor + patch, or why NCCL cannot be
// used.
func Version() (int, error) {
	v, code := rawVersion()
	if err := check("Version", code, 0); err != nil {
		return 0, err
	}
	if v < oldest {
		return v, fmt.Errorf("nccl: libnccl.so.2 is NCCL %s: install NCCL %s or later, or name its folder in LD_LIBRARY_PATH", VersionName(v), VersionName(oldest))
	}
	return v, nil
}

// VersionName returns 2.18.3 for 21803, and 2.8.4 for 2804, which is how NCCL numbered versions
// before 2.9.
func VersionName(v int) string {
	major := 10000
	if v < 10000 {
		major = 1000
	}
	return fmt.Sprintf("%d.%d.%d", v/major, v%major/100, v%100)
}

// Comm is a rank of a communicator, on the current GPU of the process.
type Comm struct {
	rank, size int
	handle     uintptr
	apart      bool // the ranks are on several hosts

	mu    sync.Mutex
	err   error          // why it was aborted
	gone  bool           // the handle is freed, or about to be
	calls sync.WaitGroup // calls that use the handle; none begins once it is gone

	leave   func()        // stops waiting for the end of the ranks
	end     func(error)   // ends all ranks
	stop    chan struct{} // ends watch
	watched chan struct{} // closed when watch has ended
}

// watchEvery is how often watch polls the communicator.
const watchEvery = 100 * time.Millisecond

// host returns an id that all containers of a host share: its boot id, or else its name.
func host() string {
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		return string(boot)
	}
	name, _ := os.Hostname() // without a name it is as if there were one host
	return name
}

// Ranks can exchange messages and end together. A launch.World implements it.
type Ranks interface {
	Exchange(what string, mine []byte, decide func(all [][]byte) ([]byte, error)) ([]byte, error)
	OnEnd(f func(reason error)) (stop func())
	End(reason error) (first error)
}

// Connect makes a communicator of ranks, all of which must call it within the given time. It is
// aborted when the ranks end early.
func Connect(ctx context.Context, ranks Ranks, rank, size int, within time.Duration) (*Comm, error) {
	told, err := ranks.Exchange("NCCL id", []byte(host()), func(hosts [][]byte) ([]byte, error) {
		id, code := rawID()
		apart := slices.ContainsFunc(hosts, func(h []byte) bool { return !bytes.Equal(h, hosts[0]) })
		return strconv.AppendBool(id[:], apart), check("Connect", code, 0)
	})
	if err != nil {
		return nil, err
	}
	if len(told) < idBytes {
		return nil, fmt.Errorf("nccl: ID of %d bytes, want %d: start all ranks with the same program", len(told), idBytes)
	}
	apart, err := strconv.ParseBool(string(told[idBytes:]))
	if err != nil {
		return nil, fmt.Errorf("nccl: %w: start all ranks with the same program", err)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not all came within %v: NCCL_DEBUG=INFO says more, and with RENDEZVOUS_TIMEOUT=5m they wait longer", within))
	defer cancel()
	defer ranks.OnEnd(end)()
	if _, err := Version(); err != nil {
		return nil, err
	}
	c := &Comm{rank: rank, size: size, apart: apart, stop: make(chan struct{}), watched: make(chan struct{})}
	c.end = func(err error) { _ = ranks.End(err) } // an earlier reason wins
	connected := make(chan error, 1)
	go func() { // ncclCommInitRankConfig cannot be interrupted, and still runs here if ctx ends first
		var code int
		c.handle, code = rawNewComm([idBytes]byte(told), rank, size)
		connected <- check("Connect", code, 0)
	}()
	select {
	case err := <-connected:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("nccl: Connect: rank %d of %d still waits for the others: %w", rank, size, context.Cause(ctx))
	}
	go c.watch()
	c.leave = ranks.OnEnd(c.Abort)
	return c, nil
}

// errClosed is the error of calls after Close.
var errClosed = errors.New("nccl: the communicator is closed")

// use runs f, which uses the handle, unless the handle is gone. If the communicator was aborted
// meanwhile, it returns that reason.
func (c *Comm) use(f func() error) error {
	c.mu.Lock()
	if c.gone {
		defer c.mu.Unlock()
		return cmp.Or(c.err, errClosed)
	}
	c.calls.Add(1)
	c.mu.Unlock()
	defer c.calls.Done()
	err := f()
	return cmp.Or(c.Err(), err)
}

// found returns NCCL's asynchronous error.
func (c *Comm) found() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return cmp.Or(c.err, errClosed)
	}
	state, code := rawState(c.handle)
	if code == 0 && state != codeInProgress {
		code = state
	}
	return check("asynchronous error", code, c.handle)
}

// watch ends the communicator, and all ranks, on an asynchronous error. A rank that waits for an exchange
// would not notice one.
func (c *Comm) watch() {
	defer close(c.watched)
	every := time.NewTicker(watchEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-c.stop:
			return
		}
		if err := c.found(); err != nil {
			c.end(err) // first, since Abort may wait for graphs with collectives in them
			c.Abort(err)
			return
		}
	}
}

// AcrossHosts reports whether the ranks are on several hosts.
func (c *Comm) AcrossHosts() bool { return c.apart }

// ReduceScatter queues on a stream a sum over the ranks. x has a part of n float32 for each rank. This
// rank's part becomes the sum of that part of all ranks. The other parts are undefined afterwards.
func (c *Comm) ReduceScatter(x uintptr, n int, stream uintptr) error {
	part := x + uintptr(c.rank*4*n)
	return c.use(func() error { return check("ReduceScatter", rawReduceScatter(c.handle, x, part, n, stream), c.handle) })
}

// AllGather queues on a stream copies between the ranks. x has a part of that many bytes for each rank. All
// ranks get the part of each.
func (c *Comm) AllGather(x uintptr, bytes int, stream uintptr) error {
	part := x + uintptr(c.rank*bytes)
	return c.use(func() error { return check("AllGather", rawAllGather(c.handle, part, x, bytes, stream), c.handle) })
}

// Rank and the methods after it are those of a Collective: see package collective.
func (c *Comm) Rank() int { return c.rank }

func (c *Comm) Size() int { return c.size }

func (c *Comm) AllReduce(x uintptr, n int, stream uintptr) error {
	return c.use(func() error { return check("AllReduce", rawAllReduce(c.handle, x, n, stream), c.handle) })
}

func (c *Comm) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// abortAfter is how long Abort waits for calls that use the handle. If the GPU waits for a rank
// that is gone, a call may wait for the GPU, and only Abort ends both.
var abortAfter = time.Second

func (c *Comm) Abort(reason error) {
	c.mu.Lock()
	gone := c.gone
	if !gone {
		c.err, c.gone = reason, true
	}
	c.mu.Unlock()
	if gone {
		return
	}
	done := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(abortAfter):
	}
	rawAbort(c.handle) // nothing is left to do if it fails
}

// Close frees the communicator, unless it was aborted and is freed already. If the other ranks do not
// close theirs in time, NCCL keeps this one until they do or the process ends: an abort would free
// memory that ncclCommFinalize still uses.
func (c *Comm) Close() error {
	c.leave()
	close(c.stop)
	<-c.watched
	c.mu.Lock()
	gone := c.gone
	c.gone = true
	c.mu.Unlock()
	if gone {
		return nil
	}
	closed := make(chan error, 1)
	go func() {
		code := rawFinalize(c.handle)
		closed <- errors.Join(check("Close", code, c.handle), check("Close", rawFreeComm(c.handle), 0))
	}()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeWithin):
		return nil
	}
}

// closeWithin is how long Close waits for the other ranks.
var closeWithin = 5 * time.Second
