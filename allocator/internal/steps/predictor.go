package steps

import "slices"

// A Predictor is the schedules of one name.
type Predictor struct {
	schedules  []*Schedule     // in the order they were made
	last       *Schedule       // of the last step; nil: none
	confidence int             // in predictions, by recent ones, from -mostConfident to mostConfident
	seen       map[uint64]bool // hashes of steps that followed no schedule, and occurred once
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

// StartsWith reports whether a schedule starts with a request for bytes.
func (p *Predictor) StartsWith(bytes int64) bool {
	return slices.ContainsFunc(p.schedules, func(c *Schedule) bool { return c.StartsWith(bytes) })
}

// Predict returns the most likely schedule of a step that starts with a request for bytes: the one that
// usually follows the last one, or the last one, or the only one. Otherwise it returns nil.
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

// SeenBefore records a step with that hash, and reports whether one occurred before.
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

// Learn compares a prediction with the schedule that the step would have followed; nil: none.
func (p *Predictor) Learn(predicted, actual *Schedule) {
	switch {
	case predicted == nil:
	case predicted == actual:
		p.confidence = min(p.confidence+1, mostConfident)
	default:
		p.confidence = max(p.confidence-1, -mostConfident)
	}
}

// Follows records that c, nil for none, is the schedule of the step after the last.
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

// IsConfident reports whether a step may be tried on a schedule.
func (p *Predictor) IsConfident() bool { return p.confidence >= 0 }

// Add adds a schedule, of the step after the last.
func (p *Predictor) Add(c *Schedule) {
	p.schedules = append(p.schedules, c)
	p.Follows(c)
}

// Schedules returns the schedules in the order they were made.
func (p *Predictor) Schedules() []*Schedule { return p.schedules }
