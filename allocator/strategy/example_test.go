package strategy_test

import (
	"fmt"
	"log"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// Holes of 4, 8, 3 and 6 MiB, called A to D, lie between blocks of 1 MiB. Each strategy takes others of them
// for three requests of 3 MiB and one of 2 MiB.
func Example() {
	const stream = 1
	for _, name := range []string{"firstfit", "nextfit", "bestfit", "worstfit"} {
		pool, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{Strategy: name})
		if err != nil {
			log.Fatal(err)
		}
		alloc := func(mib int64) allocator.Block {
			b, err := pool.Alloc(mib<<20, stream, "example")
			if err != nil {
				log.Fatal(err)
			}
			return b
		}
		var holes []allocator.Block
		for _, mib := range []int64{4, 8, 3, 6} {
			holes = append(holes, alloc(mib))
			alloc(1)
		}
		for _, h := range holes {
			if err := pool.Free(h, stream); err != nil {
				log.Fatal(err)
			}
		}
		fmt.Print(name, ":")
		for _, mib := range []int64{3, 3, 3, 2} {
			b := alloc(mib)
			for i, h := range holes {
				if h.Addr <= b.Addr && b.Addr < h.Addr+uintptr(h.Size) {
					fmt.Printf(" %c", 'A'+i)
				}
			}
		}
		fmt.Println()
	}
	// Output:
	// firstfit: A B B B
	// nextfit: A B C D
	// bestfit: C A D D
	// worstfit: B D B A
}
