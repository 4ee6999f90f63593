package hostile

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"mlpool/allocator/allocatortest"
)

// mostFailures ends a Campaign.
const mostFailures = 200

// Campaign runs programs on a target, with seeds from first on, on all processors,
// until they made ops operations or many programs failed. It returns the number of
// operations and of failed programs, and one failure of each kind.
func Campaign(first uint64, ops int64, target string) (made int64, failed int, failures []error) {
	var (
		next  atomic.Uint64
		mu    sync.Mutex // guards the results
		kinds = map[string]bool{}
		wait  sync.WaitGroup
	)
	one := func() (more bool) {
		n, err := Run(first+next.Add(1)-1, target, nil)
		mu.Lock()
		defer mu.Unlock()
		made += int64(n)
		if err != nil {
			failed++
			var f *allocatortest.Fault
			if !errors.As(err, &f) || !kinds[f.Kind] {
				failures = append(failures, err)
			}
			if f != nil {
				kinds[f.Kind] = true
			}
		}
		return made < ops && failed < mostFailures
	}
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for one() {
			}
		})
	}
	wait.Wait()
	return made, failed, failures
}
