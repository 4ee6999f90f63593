package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// greetWithin is how long one that connects may take to show that it is a rank, and rank 0
	// to show that it is that.
	greetWithin = 5 * time.Second
	// maxStrangers is how many connections there may be of which that is not known yet, beyond
	// one for each rank.
	maxStrangers = 64
	// maxRest is the longest that Accept is left alone after an error.
	maxRest = time.Second
)

// A door is where rank 0 is met. Everybody may knock: who does not show in time that it knows the
// secret is turned away, and so is the one that is at it for longest where there are too many.
type door struct {
	come      chan caller // who has shown it
	listeners []net.Listener
	cancel    func()
	all       sync.WaitGroup

	mu        sync.Mutex
	strangers []*peer // who has not, the first come first
	most      int     // of them
	refused   int     // how many knew another secret
	err       error   // of the last Accept that failed
}

// A caller is a rank that has connected to rank 0, and what it said.
type caller struct {
	peer  *peer
	hello message
}

// openDoor opens a door, until close.
func (w *World) openDoor(ctx context.Context) (*door, error) {
	listeners, err := w.over.listen(ctx, w.Address, w.OneHost)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	d := &door{come: make(chan caller), listeners: listeners, cancel: cancel, most: w.Size + maxStrangers}
	for _, l := range listeners {
		d.all.Go(func() { d.accept(ctx, l, w.Secret) })
	}
	return d, nil
}

// close sends away who is at the door. Who has come stays connected.
func (d *door) close() {
	d.cancel()
	for _, l := range d.listeners {
		_ = l.Close()
	}
	d.all.Wait()
}

// accept hears each who connects by itself, so that one who says nothing keeps nobody. After an
// error, as of too many open files, it tries again.
func (d *door) accept(ctx context.Context, l net.Listener, secret string) {
	rest := time.Duration(0)
	for ctx.Err() == nil {
		conn, err := l.Accept()
		if err != nil {
			d.failed(err)
			rest = min(max(2*rest, 5*time.Millisecond), maxRest)
			select {
			case <-time.After(rest):
			case <-ctx.Done():
			}
			continue
		}
		rest = 0
		p := newPeer(0, conn) // its rank is in its hello
		d.enter(p)
		d.all.Go(func() {
			hello, err := p.heard(ctx, secret)
			if d.leave(p, err) {
				select {
				case d.come <- caller{p, hello}:
					return
				case <-ctx.Done():
				}
			}
			_ = conn.Close()
		})
	}
}

// heard returns the hello of one that knows the secret.
func (p *peer) heard(ctx context.Context, secret string) (hello message, err error) {
	forget := p.hurry(ctx)
	if err := p.greet(secret, false); err != nil {
		return hello, err
	}
	if hello, err = p.read(maxHello); err == nil && hello.Kind != "hello" {
		err = errNoMessage
	}
	return hello, errors.Join(err, forget())
}

// hurry has what is read and written end within greetWithin, and at once when ctx is done, until
// forget.
func (p *peer) hurry(ctx context.Context) (forget func() error) {
	_ = p.conn.SetDeadline(time.Now().Add(greetWithin)) // of a connection that is closed, Read says so
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Now()) })
	return func() error {
		if !stop() {
			return ctx.Err()
		}
		return p.conn.SetDeadline(time.Time{})
	}
}

// enter notes a stranger, in whose place another one goes where there are too many.
func (d *door) enter(p *peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.strangers = append(d.strangers, p); len(d.strangers) > d.most {
		d.turnAway()
	}
}

// turnAway turns the first stranger away. mu is held.
func (d *door) turnAway() {
	if len(d.strangers) > 0 {
		_ = d.strangers[0].conn.Close()
		d.strangers = d.strangers[1:]
	}
}

// leave notes that one is a stranger no longer, and says whether it may come in: not with an error,
// nor where it was turned away.
func (d *door) leave(p *peer, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(err, errSeal) {
		d.refused++
	}
	at := slices.Index(d.strangers, p)
	if at < 0 {
		return false
	}
	d.strangers = slices.Delete(d.strangers, at, at+1)
	return err == nil
}

// failed notes an error of Accept. Where it is for want of files, a stranger has one.
func (d *door) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	d.turnAway()
}

// trouble says what happened at the door, for one that waits for ranks in vain.
func (d *door) trouble() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := ""
	if d.refused > 0 {
		text += fmt.Sprintf(", and connections with another %s or none came (%d)", SecretEnv, d.refused)
	}
	if d.err != nil {
		text += fmt.Sprintf(", and connections failed (%v)", d.err)
	}
	return text
}

// A network is what ranks meet over.
type network interface {
	// listen listens where the ranks meet, all of which are on this host or not.
	listen(ctx context.Context, address string, oneHost bool) ([]net.Listener, error)
	dial(ctx context.Context, address string) (net.Conn, error)
}

type tcp struct{}

func (tcp) listen(ctx context.Context, address string, oneHost bool) (all []net.Listener, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	for _, at := range listenAt(ctx, host, oneHost) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(at, port))
		if err != nil {
			for _, l := range all {
				_ = l.Close()
			}
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

func (tcp) dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// listenAt returns the addresses at which rank 0 listens to be met at a host.
func listenAt(ctx context.Context, host string, oneHost bool) []string {
	if isLoopback(host) {
		return []string{host}
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return []string{""} // others may know it
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return []string{""}
	}
	return ownAddresses(ips, own, oneHost)
}

// ownAddresses returns those addresses of a host that this one has. Where others may reach it at
// none of them it returns "", which is all: a name may be that of a gateway, and many hosts have
// their own for 127.0.1.1. That will do where all ranks are on one host.
func ownAddresses(ips []netip.Addr, own []net.Addr, oneHost bool) (at []string) {
	for _, ip := range ips {
		ip = ip.Unmap()
		isOwn := func(a net.Addr) bool {
			prefix, err := netip.ParsePrefix(a.String())
			if ip.IsLoopback() {
				return err == nil && oneHost && prefix.Contains(ip)
			}
			return err == nil && prefix.Addr().Unmap().WithZone("") == ip.WithZone("")
		}
		incomplete := ip.IsLinkLocalUnicast() && ip.Is6() && ip.Zone() == "" // of which link?
		if text := ip.String(); !incomplete && slices.ContainsFunc(own, isOwn) && !slices.Contains(at, text) {
			at = append(at, text)
		}
	}
	if at == nil {
		return []string{""}
	}
	return at
}
