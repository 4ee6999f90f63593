// Package scaling is a rough model of how ranks, one on each GPU, exchange the updates of a step, as package
// kernels/device does, and of what a step waits for. Its constants fit two and four H200s over NVLink, in
// assets/scaling_h200.csv; tools/figures draws it through what was measured.
//
// A step takes T on one GPU. The weights are S MB in B buckets. N ranks on one host take, with the latency l of an
// exchange and the time v of a MB over NVLink,
//
//	X = B·l + 2·S·(N−1)/N·v
//
// where in bf16 1.5 takes the place of 2. A step waits for a single bucket. Several are hidden behind two fifths of the
// step, but they make GEMMs beside them longer by a tenth of their own time, which fits what was measured:
// E = max(X/10, X−2T/5). The efficiency of weak scaling is T/(T+E). In strong scaling T shrinks as 1/N, and X does not.
//
// Ranks on H hosts of G GPUs, N = H·G, reach no memory of other hosts. NCCL moves as many bytes through all G network
// adapters of a host at w MB/µs each:
//
//	X = B·L + 2·S·(N−1)/N·max(v, 1/(G·w))
//
// L is the latency of a reduce-scatter and an all-gather over all hosts, and may grow with N. L and w are the network's.
// They were measured on none.
// [Exchange.Adapter] turns this around: the least w with which a step hides its bytes. They hardly depend on
// N. So weak scaling over hosts stops paying where B·L reaches T, and strong scaling at N GPUs where the
// batch of each, T/N, asks more of w than there is: twice the GPUs then bring nothing. Where v is less
// than 1/(G·w), adding hosts slows a step at once, and more GPUs in a host come first. The SMs that
// NCCL takes from GEMMs are not in the formula. Table "hosts" of assets/README.md has 64 GPUs on 8 hosts.
package scaling

const (
	StepUS     = 20  // µs of a step in addition to its GEMMs' arithmetic: launches, and small waves
	exchangeUS = 6   // of an exchange in addition to its bytes: ranks wait for each other
	linkUS     = 3.5 // of a MB over NVLink, beside GEMMs
	hidden     = 0.4 // the part of a step that hides exchanges
	lost       = 0.1 // the part of hidden exchanges by which GEMMs take longer
	bucketMega = 6.3 // as kernels/device divides weights into buckets
)

// An Exchange is that of a step's updates between the GPUs of one host.
type Exchange struct {
	Ranks   int
	Buckets int
	Mega    float64 // MB of weights
	BF16    bool    // ranks give each other weights in bf16
}

// Weights returns the number of weights of a model with layers hidden layers.
func Weights(features, width, layers, classes float64) float64 {
	return features*width + (layers-1)*width*width + width*classes
}

// Of returns the exchange of a model's weights, in bf16 or another precision.
func Of(weights float64, layers, ranks int, bf16 bool) Exchange {
	e := Exchange{Ranks: ranks, Mega: 4e-6 * weights, BF16: bf16}
	e.Buckets = max(1, min(layers, int(e.Mega/bucketMega)))
	return e
}

// moved returns the MB that a rank receives in a step, and sends.
func (e Exchange) moved() float64 {
	n, times := float64(e.Ranks), 2.0
	if e.BF16 {
		times = 1.5
	}
	return times * e.Mega * (n - 1) / n
}

// US returns the µs of all exchanges of a step.
func (e Exchange) US() float64 { return float64(e.Buckets)*exchangeUS + linkUS*e.moved() }

// Exposed returns the µs by which the exchange makes a step of alone µs longer.
func (e Exchange) Exposed(alone float64) float64 {
	us := e.US()
	if e.Buckets == 1 {
		return us
	}
	return max(lost*us, us-hidden*alone)
}

// Weak returns the efficiency of ranks, each of which trains batches that take one GPU alone µs.
func (e Exchange) Weak(alone float64) float64 {
	return alone / (alone + e.Exposed(alone))
}

// Strong returns the efficiency of ranks that together train batches that take one GPU alone µs.
func (e Exchange) Strong(alone float64) float64 {
	n := float64(e.Ranks)
	each := StepUS + max(0, alone-StepUS)/n
	return alone / n / (each + e.Exposed(each))
}

// Adapter returns the MB that each network adapter moves in a step if the ranks are on some hosts, and the
// least GB/s with which a step of alone µs hides them.
func (e Exchange) Adapter(hosts int, alone float64) (mega, rate float64) {
	mega = e.moved() / (float64(e.Ranks) / float64(hosts))
	return mega, 1e3 * mega / (hidden * alone)
}
