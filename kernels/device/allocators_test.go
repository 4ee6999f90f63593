package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/cudadriver"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/kernels/kerneltest"
)

// limit is the bytes that a pool under test may reserve.
const limit = 1 << 30

// TestAllocatorsOnHostMemory and TestAllocatorsOnGPU run the suite of package
// allocatortest on real memory: its contents are written and read back.
func TestAllocatorsOnHostMemory(t *testing.T) {
	allocatortest.Run(t, func(t *testing.T) *allocatortest.Env {
		queues := make(map[allocator.Stream]device.Queue)
		for s := range allocator.Stream(4) {
			queues[s] = new(device.HostQueue)
		}
		return newEnv(newPool(t, device.NewHostDriver(), allocator.PoolOptions{}), queues)
	})
}

func TestAllocatorsOnGPU(t *testing.T) {
	kerneltest.RequireGPU(t)
	over := func(d allocator.Driver, o allocator.PoolOptions) func(*testing.T) *allocatortest.Env {
		return func(t *testing.T) *allocatortest.Env {
			o.MaxBytes = limit
			env := newEnv(newPool(t, d, o), cudaQueues(t))
			env.Limit, env.Caches, env.Returns = limit, true, true
			return env
		}
	}
	pool := func(o allocator.PoolOptions) func(*testing.T) *allocatortest.Env {
		return over(cudadriver.Driver{}, o)
	}
	for name, open := range map[string]func(*testing.T) *allocatortest.Env{
		"pool":               pool(allocator.PoolOptions{}),
		"pool/opportunistic": pool(allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic}),
		"pool/same-stream":   pool(allocator.PoolOptions{Reuse: allocator.ReuseSameStream}),
		"pool/shared":        over(sharedDriver(t), allocator.PoolOptions{}),
		"malloc": func(t *testing.T) *allocatortest.Env {
			return newEnv(allocator.NewMalloc(cudadriver.Driver{}), cudaQueues(t))
		},
		"async": func(t *testing.T) *allocatortest.Env {
			p, err := cudadriver.NewMemPool()
			must.OK(t, err)
			return newEnv(allocator.NewAsync(p), cudaQueues(t))
		},
	} {
		t.Run(name, func(t *testing.T) { allocatortest.Run(t, open) })
	}
}

// sharedDriver returns a Driver whose pages other processes and a second device, if there is one, can use.
func sharedDriver(t *testing.T) cudadriver.Driver {
	t.Helper()
	devices, err := cudadriver.DeviceCount()
	must.OK(t, err)
	peers := []int{1}[:min(devices-1, 1)]
	for _, o := range []cudadriver.Options{{Peers: peers, Shareable: true}, {Shareable: true}, {}} {
		d, err := cudadriver.New(o)
		if err == nil {
			return d
		}
		t.Log(err)
	}
	t.Fatal("no Driver of device 0")
	return cudadriver.Driver{}
}

func newPool(t *testing.T, d allocator.Driver, o allocator.PoolOptions) allocator.Allocator {
	p, err := allocator.NewPool(d, o)
	must.OK(t, err)
	return p
}

func cudaQueues(t *testing.T) map[allocator.Stream]device.Queue {
	queues := make(map[allocator.Stream]device.Queue)
	for range 4 {
		q, err := device.NewCUDAQueue(kernels.FP32)
		must.OK(t, err)
		queues[q.Handle()] = q
	}
	return queues
}

// newEnv lets the suite use an allocator's memory through queues.
func newEnv(a allocator.Allocator, queues map[allocator.Stream]device.Queue) *allocatortest.Env {
	each := func(f func(device.Queue) error) error {
		var errs []error
		for _, q := range queues {
			errs = append(errs, f(q))
		}
		return errors.Join(errs...)
	}
	fill := func(b allocator.Block, s allocator.Stream, id byte) error {
		return queues[s].Fill(b.Addr, id, int(b.Size))
	}
	env := &allocatortest.Env{
		Allocator: a,
		Use:       func(b allocator.Block, s allocator.Stream) error { return fill(b, s, 1) },
		Fill:      fill,
		Verify: func(b allocator.Block, s allocator.Stream, id byte) error {
			got := make([]byte, b.Size)
			if err := queues[s].Download(got, b.Addr); err != nil {
				return err
			}
			if n := len(got) - bytes.Count(got, []byte{id}); n > 0 {
				return fmt.Errorf("%d of %d bytes are not %d", n, len(got), id)
			}
			return nil
		},
		Order: func(from, to allocator.Stream) error {
			if _, gpu := queues[from].(*device.CUDAQueue); !gpu {
				return nil
			}
			var d cudadriver.Driver
			event, err := d.NewEvent()
			if err != nil {
				return err
			}
			return errors.Join(d.RecordEvent(event, from), d.WaitEvent(to, event), d.FreeEvent(event))
		},
		Sync:   func() error { return each(device.Queue.Synchronize) },
		Closed: func() error { return each(device.Queue.Close) },
	}
	for s := range queues {
		env.Streams = append(env.Streams, s)
	}
	return env
}
