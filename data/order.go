package data

import (
	"math/bits"
	"math/rand/v2"
)

// Order returns the order in which an epoch visits the n rows of a set: a permutation of
// 0..n-1 that depends on the arguments alone, not on the platform. It panics if n is
// negative; n is at most 2^31-1.
//
// It is a Fisher-Yates shuffle that another program can repeat. Start with
// order[i] = i; for i from n-1 down to 1, draw a 64-bit number u, let j be the
// high 64 bits of the 128-bit product u*(i+1), and swap order[i] and order[j].
// The numbers come from PCG-DXSM, [math/rand/v2.PCG], with the 128-bit state
// s = seed<<64 | epoch. Each draw first steps the state, modulo 2^128,
//
//	s = s*0x2360ed051fc65da44385df649fccf645 + 0x5851f42d4c957f2d14057b7ef767814f
//
// and then mixes its halves hi and lo, modulo 2^64:
//
//	hi ^= hi >> 32; hi *= 0xda942042e4dd58b5; hi ^= hi >> 48; u = hi * (lo|1)
func Order(n int, seed uint64, epoch int) []int32 {
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	rng := rand.NewPCG(seed, uint64(epoch))
	for i := n - 1; i > 0; i-- {
		j, _ := bits.Mul64(rng.Uint64(), uint64(i)+1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}
