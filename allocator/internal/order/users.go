package order

import (
	"slices"

	"mlpool/allocator/internal/spin"
)

// A User is a stream that uses memory of other streams.
type User struct {
	stream Stream
	uses   int  // lists that name it
	gone   bool // the stream was released: its work is done
}

// Uses lists the other streams that use some memory.
type Uses []*User

// Users holds the streams that Uses name, and up to idleUsers that none names.
type Users struct {
	mu    spin.Mutex
	named map[Stream]*User
}

// idleUsers is the number of streams that are kept although nothing names them.
const idleUsers = 64

// Name adds s to the streams that use some memory. It returns the user if it is new.
func (us *Users) Name(of *Uses, s Stream) *User {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.named[s]
	if u == nil {
		if us.named == nil {
			us.named = map[Stream]*User{}
		}
		u = &User{stream: s}
		us.named[s] = u
	}
	if slices.Contains(*of, u) {
		return nil
	}
	*of = append(*of, u)
	u.uses++
	return u
}

// Unname undoes the last Name, which returned u, which may be nil.
func (us *Users) Unname(of *Uses, u *User) {
	if u != nil {
		*of = (*of)[:len(*of)-1]
		us.drop(u)
	}
}

// Forget empties a list.
func (us *Users) Forget(of *Uses) {
	for _, u := range *of {
		us.drop(u)
	}
	*of = (*of)[:0]
}

// drop releases one reference to u.
func (us *Users) drop(u *User) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if u.uses--; u.uses == 0 && !u.gone && len(us.named) > idleUsers {
		delete(us.named, u.stream)
	}
}

// Release records that the work on s is done. A later stream with that handle is another user.
func (us *Users) Release(s Stream) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if u := us.named[s]; u != nil {
		u.gone = true
		delete(us.named, s)
	}
}

// Sync waits on the host for the users of some memory, except the streams in done, to which it adds them.
func (us *Users) Sync(uses Uses, done map[Stream]bool, events *Events) error {
	for _, u := range uses {
		if done[u.stream] || us.isGone(u) {
			continue
		}
		if err := events.Sync(u.stream); err != nil {
			return err
		}
		done[u.stream] = true
	}
	return nil
}

func (us *Users) isGone(u *User) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	return u.gone
}

// Order makes s wait, on the device, for the users of some memory.
func (us *Users) Order(uses Uses, s Stream, events *Events) error {
	for _, u := range uses {
		if u.stream == s || us.isGone(u) {
			continue
		}
		if err := events.Order(u.stream, s); err != nil {
			return err
		}
	}
	return nil
}
