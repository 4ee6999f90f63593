package order

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator/allocatortest/fake"
)

// memory is what waits, at an address of the device.
type memory struct {
	class int
	addr  uintptr
	item  *Item[*memory]
}

const own Stream = 100 // of the queue

// A rig is a queue, and what waits in it as a simple bookkeeper knows it.
type rig struct {
	d       *fake.Device
	next    uintptr // address of the next memory
	owner   uint64  // of the last work
	refuse  bool    // every call fails
	events  Events
	users   Users
	q       Queue[*memory]
	waiting map[*memory]bool
	err     error
}

func newRig() *rig {
	const bytes = 1 << 24
	r := &rig{d: fake.New(bytes), waiting: map[*memory]bool{}}
	r.next, r.err = r.d.Malloc(bytes)
	r.allow(true)
	r.events.Driver = r.d
	r.q.Init(&r.users, &r.events, r)
	return r
}

// allow makes the device serve calls, or refuse them all. One query in four finds work done.
func (r *rig) allow(calls bool) {
	c := fake.Chance{Random: rand.New(rand.NewPCG(r.owner, 1)), DoneOneIn: 4}
	if !calls {
		c.FailOneIn = 1
	}
	r.refuse = !calls
	r.d.SetChance(c)
}

// use queues work on m on stream s, as the first of an owner: it must be ordered after all
// work before.
func (r *rig) use(m *memory, s Stream) {
	r.owner++
	r.err = errors.Join(r.err, r.d.Use(m.addr, 1, s, r.owner))
}

// Ready checks that all work on m is done, or that the queue's stream waits for it.
func (r *rig) Ready(m *memory) {
	if !r.waiting[m] {
		r.err = errors.New("what did not wait is ready")
	}
	delete(r.waiting, m)
	r.use(m, own)
}

// free frees memory that some streams use.
func (r *rig) free(class int, streams []Stream) {
	m := &memory{class: class, addr: r.next}
	r.next += 256
	r.owner++
	var uses Uses
	for _, s := range streams {
		r.err = errors.Join(r.err, r.d.Use(m.addr, 1, s, r.owner))
		r.users.Name(&uses, s)
	}
	if r.q.ReapIfDue() != nil {
		return
	}
	item, err := r.q.After(uses, m, class)
	r.users.Forget(&uses)
	if err != nil {
		if !r.refuse {
			r.err = err
		}
		return
	}
	if item == nil {
		r.err = errors.New("nothing waits for streams that exist")
		return
	}
	m.item = item
	r.waiting[m] = true
	r.q.Push(item)
	r.q.Observe(class, 0)
}

func (r *rig) claim(n int) {
	var items []*Item[*memory]
	for _, m := range r.q.Largest {
		if len(items) < n {
			items = append(items, m.item)
		}
	}
	of := make([]*memory, len(items))
	for i, it := range items {
		of[i] = it.Of
	}
	marks, err := r.q.Claim(items, own+1, 1)
	if err != nil {
		return
	}
	for _, event := range marks {
		r.events.Release(event)
	}
	for _, m := range of {
		delete(r.waiting, m)
		r.use(m, own+1)
	}
}

// play does what data says, two bytes a call.
func (r *rig) play(data []byte) error {
	for ; len(data) >= 2 && r.err == nil; data = data[2:] {
		r.allow(data[0]&0x80 == 0)
		arg := int(data[1])
		switch data[0] % 8 {
		case 0, 1, 2:
			r.free(arg%5, []Stream{Stream(1 + arg%3), Stream(1 + arg/16%4)})
		case 3:
			if arg%8 == 0 {
				r.d.Finish()
			}
		case 4:
			calls := arg % 16
			before := r.d.Calls()
			if r.q.Reap(&calls) == nil && (calls < 0 || r.d.Calls()-before != arg%16-calls) {
				r.err = errors.New("Reap made more calls than it was given")
			}
		case 5:
			calls := arg % 16
			r.q.WaitForOldest(own, func(m *memory) bool { return m.class >= arg%5 }, &calls)
		case 6:
			r.claim(arg % 4)
		case 7:
			if arg%8 == 0 && r.q.Drain(own, HostWaits) == nil && r.q.Len() != 0 {
				r.err = errors.New("something waits after Drain")
			}
		}
		if r.err == nil && int64(len(r.waiting)) != r.q.Len() {
			r.err = fmt.Errorf("%d wait, want %d", r.q.Len(), len(r.waiting))
		}
	}
	return r.err
}

// end makes everything ready, and gives the events back.
func (r *rig) end() error {
	r.allow(true)
	err := r.q.Drain(own, HostWaits)
	if len(r.waiting) > 0 || r.err != nil {
		return fmt.Errorf("%d still wait: %w", len(r.waiting), errors.Join(err, r.err))
	}
	errs := []error{err}
	r.events.Close(&errs)
	return errors.Join(errs...)
}

func TestQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 20_000)
	for i := range data {
		data[i] = byte(random.Uint32())
		if i%2 == 0 && random.IntN(8) > 0 {
			data[i] &^= 0x80
		}
	}
	r := newRig()
	if err := errors.Join(r.play(data), r.end()); err != nil {
		t.Fatal(err)
	}
	if len(r.users.named) > idleUsers {
		t.Errorf("%d users are kept", len(r.users.named))
	}
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 1, 1, 20, 2, 33, 3, 7, 4, 9, 5, 3, 6, 2, 7, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newRig()
		if err := errors.Join(r.play(data), r.end()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestReleasedUser frees memory that a stream used which was released: nothing waits.
func TestReleasedUser(t *testing.T) {
	r := newRig()
	var uses Uses
	r.users.Name(&uses, 7)
	r.users.Release(7)
	if item, err := r.q.After(uses, &memory{}, 0); item != nil || err != nil {
		t.Errorf("%v, %v", item, err)
	}
	if err := r.users.Order(uses, 8, &r.events); err != nil || r.d.Calls("WaitEvent", "RecordEvent") != 0 {
		t.Errorf("%d calls of the driver, %v", r.d.Calls(), err)
	}
}

// TestRounds tells how many items a round has by the frees between two requests.
func TestRounds(t *testing.T) {
	var q Queue[int]
	for round := range int64(20) {
		for range 6 {
			q.Observe(3, round)
		}
	}
	if got := q.byClass[3].rounds.size(); got != 6 {
		t.Errorf("a round has %d items, want 6", got)
	}
}
