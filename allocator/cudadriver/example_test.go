package cudadriver_test

import (
	"log"
	"net"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
)

// A pool on the GPU. CUDA's runtime, driver and libraries can use its memory in the same
// process. The example needs a GPU, so it is only compiled.
func ExampleDriver() {
	if err := cudadriver.Available(); err != nil {
		log.Fatal(err) // one line that says why
	}
	var driver cudadriver.Driver
	stream, err := driver.NewStream() // or any cudaStream_t, as a uintptr
	if err != nil {
		log.Fatal(err)
	}
	pool, err := allocator.NewPool(driver, allocator.PoolOptions{MaxFraction: 0.5})
	if err != nil {
		log.Fatal(err)
	}
	b, err := pool.Alloc(64<<20, stream, "activations")
	if err != nil {
		log.Fatal(err)
	}
	// Work on b.Addr is queued on the stream here, which is a CUstream too.
	if err := pool.Free(b, stream); err != nil {
		log.Fatal(err)
	}

	if err := pool.ReleaseStream(stream); err != nil {
		log.Fatal(err)
	}
	if err := driver.SyncStream(stream); err != nil {
		log.Fatal(err)
	}
	if err := driver.FreeStream(stream); err != nil {
		log.Fatal(err)
	}
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
}

// An allocator over cudaMallocAsync that keeps 1 GiB of free memory. The example needs a
// GPU, so it is only compiled.
func ExampleMemPool() {
	options := cudadriver.DefaultMemPoolOptions()
	options.ReleaseThreshold = 1 << 30
	driverPool, err := cudadriver.NewMemPoolWith(options)
	if err != nil {
		log.Fatal(err)
	}
	async := allocator.NewAsync(driverPool) // closes driverPool when it is closed
	b, err := async.Alloc(64<<20, 0, "activations")
	if err != nil {
		log.Fatal(err)
	}
	if err := async.Free(b, 0); err != nil {
		log.Fatal(err)
	}
	if err := async.Close(); err != nil {
		log.Fatal(err)
	}
}

// Two processes share a block. The pages of the sender come from its PageDriver calls or from its
// pool. The example needs two processes with a GPU, so it is only compiled.
func ExampleDriver_Send() {
	send := func(c *net.UnixConn) error {
		driver, err := cudadriver.New(cudadriver.Options{Shareable: true})
		if err != nil {
			return err
		}
		page, err := driver.PageSize()
		if err != nil {
			return err
		}
		pages, err := driver.CreatePages(page)
		if err != nil {
			return err
		}
		parts := []cudadriver.Part{{Pages: pages, Bytes: page}}
		return driver.Send(c, cudadriver.Memory{Pages: parts, Bytes: 4096})
	}
	receive := func(c *net.UnixConn) error {
		driver, err := cudadriver.New(cudadriver.Options{Device: 1})
		if err != nil {
			return err
		}
		block, err := driver.Receive(c)
		if err != nil {
			return err
		}
		// Work on block.Addr is queued on a stream of device 1 here, and waited for.
		return block.Close()
	}
	_, _ = send, receive
}
