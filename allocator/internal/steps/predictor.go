package steps

import "slices"

// A Predictor is the schedules of one name.
type Predictor struct {
	schedules  []*Schedule     // in the order they were made
	last       *Schedule       // that the step before kept to; nil: to none
	confidence int             // how right the predictions were of late, from -mostConfident to mostConfident
	seen       map[uint64]bool // the hashes of steps that kept to no schedule and came once
}

const (
	mostConfident = 2
	mostSeen      = 1024 // hashes
)

// WithHash returns the schedule of that hash, or nil.
func (p *Predictor) WithHash(hash uint64) *Schedule {
	for _, c := range p.schedules {
		if c.Hash == hash {
			return c
		}
	}
	return nil
}

// StartsWith says whether a schedule starts with a request for bytes.
func (p *Predictor) StartsWith(bytes int64) bool {
	return slices.ContainsFunc(p.schedules, func(c *Schedule) bool { return c.StartsWith(bytes) })
}

// Predict returns the schedule that a step which starts with a request for bytes is
// likely to keep to: the one that follows on the last one as a rule, or the last one,
// or the only one. Otherwise it returns nil.
func (p *Predictor) Predict(bytes int64) *Schedule {
	if c := p.last; c != nil {
		if c.next != nil {
			c = c.next
		}
		if c.StartsWith(bytes) {
			return c
		}
	}
	var only *Schedule
	for _, c := range p.schedules {
		if !c.StartsWith(bytes) {
			continue
		}
		if only != nil {
			return nil
		}
		only = c
	}
	return only
}

// Drop forgets a schedule.
func (p *Predictor) Drop(gone *Schedule) {
	p.schedules = slices.DeleteFunc(p.schedules, func(c *Schedule) bool { return c == gone })
	for _, c := range p.schedules {
		if c.next == gone {
			c.next = nil
		}
	}
	if p.last == gone {
		p.last = nil
	}
}

// SeenBefore says whether a step of that hash came before, and notes that it came.
func (p *Predictor) SeenBefore(hash uint64) bool {
	if p.seen[hash] {
		delete(p.seen, hash)
		return true
	}
	if p.seen == nil || len(p.seen) >= mostSeen {
		p.seen = map[uint64]bool{}
	}
	p.seen[hash] = true
	return false
}

// Learn compares a prediction, nil for none, with the schedule that a step would have kept
// to, nil for none.
func (p *Predictor) Learn(predicted, actual *Schedule) {
	switch {
	case predicted == nil:
	case predicted == actual:
		p.confidence = min(p.confidence+1, mostConfident)
	default:
		p.confidence = max(p.confidence-1, -mostConfident)
	}
}

// Follows notes that c, nil for none, is the schedule of the step after the last.
func (p *Predictor) Follows(c *Schedule) {
	if last := p.last; last != nil && c != nil {
		if last.next != c && !last.sure {
			last.next = c
		}
		last.sure = last.next == c
	}
	p.last = c
}

// NewPredictor returns one without schedules, with some confidence.
func NewPredictor() *Predictor { return &Predictor{confidence: 1} }

// IsConfident says whether a step may be tried on a schedule.
func (p *Predictor) IsConfident() bool { return p.confidence >= 0 }

// Add adds a schedule, of the step after the last.
func (p *Predictor) Add(c *Schedule) {
	p.schedules = append(p.schedules, c)
	p.Follows(c)
}

// Schedules returns the schedules in the order they were made.
func (p *Predictor) Schedules() []*Schedule { return p.schedules }
