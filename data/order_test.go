package data

import (
	"math"
	"math/big"
	"slices"
	"testing"
)

// documented shuffles by Order's comment, in big integers.
func documented(n int, seed uint64, epoch int) []int32 {
	hex := func(s string) *big.Int { i, _ := new(big.Int).SetString(s, 16); return i }
	mod := func(i *big.Int, bits uint) *big.Int {
		return i.Mod(i, new(big.Int).Lsh(big.NewInt(1), bits))
	}
	mul, inc := hex("2360ed051fc65da44385df649fccf645"), hex("5851f42d4c957f2d14057b7ef767814f")
	s := new(big.Int).SetUint64(seed)
	s.Lsh(s, 64).Or(s, big.NewInt(int64(epoch)))
	order := make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	for i := n - 1; i > 0; i-- {
		s = mod(s.Add(s.Mul(s, mul), inc), 128)
		hi := new(big.Int).Rsh(s, 64)
		lo := mod(new(big.Int).Set(s), 64)
		hi.Xor(hi, new(big.Int).Rsh(hi, 32))
		hi = mod(hi.Mul(hi, hex("da942042e4dd58b5")), 64)
		hi.Xor(hi, new(big.Int).Rsh(hi, 48))
		u := mod(hi.Mul(hi, lo.SetBit(lo, 0, 1)), 64)
		j := u.Rsh(u.Mul(u, big.NewInt(int64(i)+1)), 64).Int64()
		order[i], order[j] = order[j], order[i]
	}
	return order
}

func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		n, epoch int
		seed     uint64
		want     []int32 // nil: as documented
	}{
		{0, 0, 0, []int32{}},
		{1, 0, 0, []int32{0}},
		{10, 0, 0, []int32{4, 8, 1, 5, 0, 7, 3, 9, 6, 2}},
		{10, 1, 0, []int32{6, 4, 5, 9, 7, 3, 2, 8, 0, 1}},
		{2, 3, 5, nil},
		{1000, 7, math.MaxUint64, nil},
	} {
		want := tt.want
		if want == nil {
			want = documented(tt.n, tt.seed, tt.epoch)
		}
		if got := Order(tt.n, tt.seed, tt.epoch); !slices.Equal(got, want) {
			t.Errorf("Order(%d, %d, %d) = %v, want %v", tt.n, tt.seed, tt.epoch, got, want)
		}
	}
}
