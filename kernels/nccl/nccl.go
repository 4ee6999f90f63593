// Package nccl is a [collective.Collective] on NVIDIA's GPUs. It opens libnccl.so.2 when it
// is first used, so that neither a build nor a program that uses one GPU needs NCCL.
//
// A goroutine polls each communicator for asynchronous errors (ncclCommGetAsyncError) and
// ends all ranks on one. Abort wakes whoever waits for an all-reduce on the GPU, but not who
// waits for an all-gather: copy engines wait until the other ranks come.
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

	"mlpool/kernels/collective"
)

// oldest is the first version with ncclCommInitRankConfig as it is called here.
const oldest = 21800

// An Error is a call that NCCL refused, or its work that failed.
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
		return fmt.Errorf("nccl: %s: %w by NCCL %s", op, errors.ErrUnsupported, versionName())
	}
	return &Error{op, code, rawError(code, comm)}
}

// Version returns that of the library, 10000·major + 100·minor + patch, or why there is
// none that can be used.
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

// VersionName is 2.18.3 of 21803, as NCCL numbers its versions, and 2.8.4 of 2804, as it did
// before 2.9.
func VersionName(v int) string {
	major := 10000
	if v < 10000 {
		major = 1000
	}
	return fmt.Sprintf("%d.%d.%d", v/major, v%major/100, v%100)
}

func versionName() string {
	v, _ := rawVersion()
	return VersionName(v)
}

// An ID is what the ranks of one communicator have in common.
type ID = [idBytes]byte

// NewID makes an ID, which the other ranks are to be told of.
func NewID() (ID, error) {
	id, code := rawID()
	return id, check("NewID", code, 0)
}

// Comm is a rank of a communicator, on the GPU that the process uses.
type Comm struct {
	rank, size int
	handle     uintptr
	apart      bool // not all ranks are on one host

	mu    sync.Mutex
	err   error          // why it was aborted
	gone  bool           // the handle is freed, or about to be
	calls sync.WaitGroup // that have the handle; none begins once it is gone

	leave   func()        // the ranks of Connect
	end     func(error)   // ends them all
	stop    chan struct{} // ends watch
	watched chan struct{} // closed when it has
}

var _ collective.Collective = (*Comm)(nil)

// watchEvery is how often the state of a communicator is looked at.
const watchEvery = 100 * time.Millisecond

// New connects the ranks. If ctx ends first it returns an error; ncclCommInitRankConfig goes
// on in its own goroutine, since it cannot be interrupted.
func New(ctx context.Context, id ID, rank, size int) (*Comm, error) {
	return connect(ctx, id, rank, size, func(error) {})
}

func connect(ctx context.Context, id ID, rank, size int, end func(error)) (*Comm, error) {
	if _, err := Version(); err != nil {
		return nil, err
	}
	c := &Comm{rank: rank, size: size, leave: func() {}, end: end, stop: make(chan struct{}), watched: make(chan struct{})}
	connected := make(chan error, 1)
	go func() {
		handle, code := rawNewComm(id, rank, size)
		c.handle = handle
		connected <- check("New", code, 0)
	}()
	select {
	case err := <-connected:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("nccl: New: rank %d of %d still waits for the others: %w", rank, size, context.Cause(ctx))
	}
	go c.watch()
	return c, nil
}

// host is one for all containers of a host: since when it runs, or else its name.
func host() string {
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		return string(boot)
	}
	name, _ := os.Hostname() // without a name it is as if there were one host
	return name
}

// Ranks have met, and can tell each other words: a launch.World.
type Ranks interface {
	Exchange(what string, mine []byte, decide func(all [][]byte) ([]byte, error)) ([]byte, error)
	OnEnd(f func(reason error)) (stop func())
	End(reason error) (first error)
}

// Connect makes a communicator of ranks that have met, all of which call it within some
// time. It is aborted when they end before their time.
func Connect(ctx context.Context, ranks Ranks, rank, size int, within time.Duration) (*Comm, error) {
	told, err := ranks.Exchange("NCCL id", []byte(host()), func(hosts [][]byte) ([]byte, error) {
		id, err := NewID()
		apart := slices.ContainsFunc(hosts, func(h []byte) bool { return !bytes.Equal(h, hosts[0]) })
		return strconv.AppendBool(id[:], apart), err
	})
	if err != nil {
		return nil, err
	}
	if len(told) < idBytes {
		return nil, fmt.Errorf("nccl: an ID of %d bytes, want %d: start all ranks with the same program", len(told), idBytes)
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
	c, err := connect(ctx, ID(told), rank, size, func(err error) { _ = ranks.End(err) }) // an earlier reason stays
	if err != nil {
		return nil, err
	}
	c.apart, c.leave = apart, ranks.OnEnd(c.Abort)
	return c, nil
}

// errClosed is returned by calls after Close.
var errClosed = errors.New("nccl: the communicator is closed")

// use runs f, which has the handle, unless that is gone. Where it was aborted meanwhile, the
// reason is what counts.
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

// found is what NCCL has found wrong by itself.
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

// watch ends the communicator when NCCL finds that it cannot go on, and all ranks: who waits for
// copy engines would not notice.
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
			c.end(err) // first: Abort may wait for graphs in which there is a collective
			c.Abort(err)
			return
		}
	}
}

// Rank and the methods after it: see [collective.Collective].
func (c *Comm) Rank() int { return c.rank }

func (c *Comm) Size() int { return c.size }

func (c *Comm) AllReduce(x uintptr, n int, stream uintptr) error {
	return c.use(func() error { return check("AllReduce", rawAllReduce(c.handle, x, n, stream), c.handle) })
}

// AllGather is done by copy engines among GPUs of one host that reach each other's memory.
func (c *Comm) AllGather(x uintptr, n int, stream uintptr) error {
	return c.use(func() error { return check("AllGather", rawAllGather(c.handle, x, n, c.rank, stream), c.handle) })
}

// AllocSymmetric needs NCCL 2.28, and GPUs of one host that reach each other's memory.
func (c *Comm) AllocSymmetric(bytes int) (addr uintptr, free func() error, err error) {
	const op = "AllocSymmetric"
	if v, _ := rawVersion(); v < copyEngines {
		return 0, nil, check(op, codeNone, 0)
	}
	if c.apart {
		return 0, nil, fmt.Errorf("nccl: %s: %w between hosts", op, errors.ErrUnsupported)
	}
	if addr, err = Alloc(int64(bytes)); err != nil {
		return 0, nil, err
	}
	var window uintptr
	deregister, err := c.register(op, func(comm, addr uintptr, bytes int64) (_ uintptr, code int) {
		window, code = rawNewWindow(comm, addr, bytes)
		return window, code
	}, rawFreeWindow, addr, int64(bytes))
	if err == nil && window == 0 {
		err = fmt.Errorf("nccl: %s: %w between these GPUs", op, errors.ErrUnsupported)
	}
	if err != nil {
		return 0, nil, errors.Join(err, Free(addr))
	}
	return addr, func() error {
		if c.Err() != nil {
			return nil // the window has ended, and what is queued may still write to the memory
		}
		if err := deregister(); err != nil {
			return err // a window still has it
		}
		return Free(addr)
	}, nil
}

func (c *Comm) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// abortAfter is how long Abort, which frees the handle, waits for calls that have it. Where
// the GPU waits for a rank that is gone, a launch may wait for the GPU: until Abort.
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
	rawAbort(c.handle) // whatever comes of it, there is no more to be done
}

// Close frees the communicator. One that was aborted is freed already. Where the other ranks do
// not part in time, one of which may be gone, NCCL keeps the communicator until they do, or
// until the process ends: to abort it would free what ncclCommFinalize still uses.
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

// closeWithin is how long Close waits for the ranks to part.
var closeWithin = 5 * time.Second

// Register names memory that all-reduces will be on: where ranks reach each other's memory,
// NCCL then need not copy from it into buffers of its own. It returns a function that takes
// that back. NCCL 2.19 or later has it: of an older one, as of the functions below, the error
// is [errors.ErrUnsupported].
func (c *Comm) Register(addr uintptr, bytes int64) (deregister func() error, err error) {
	return c.register("Register", rawRegister, rawDeregister, addr, bytes)
}

// RegisterWindow registers memory as a symmetric window (ncclCommWindowRegister, NCCL 2.27),
// for which NCCL has kernels of its own: all ranks call it together, at the same offset of
// their memory of [Alloc].
func (c *Comm) RegisterWindow(addr uintptr, bytes int64) (deregister func() error, err error) {
	return c.register("RegisterWindow", rawNewWindow, rawFreeWindow, addr, bytes)
}

func (c *Comm) register(op string, raw func(comm, addr uintptr, bytes int64) (uintptr, int), undo func(comm, handle uintptr) int, addr uintptr, bytes int64) (deregister func() error, err error) {
	var handle uintptr
	if err := c.use(func() error {
		var code int
		handle, code = raw(c.handle, addr, bytes)
		return check(op, code, c.handle)
	}); err != nil {
		return nil, err
	}
	return func() error {
		return c.use(func() error { return check(op+", undone", undo(c.handle, handle), c.handle) })
	}, nil
}

// Alloc is ncclMemAlloc: memory of the GPU that other GPUs can be let at.
func Alloc(bytes int64) (addr uintptr, err error) {
	addr, code := rawAlloc(bytes)
	return addr, check("Alloc", code, 0)
}

// Free frees memory of Alloc.
func Free(addr uintptr) error { return check("Free", rawFree(addr), 0) }
