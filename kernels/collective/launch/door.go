package launch

import (
	"cmp"
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
	// greetWithin is how long either side of a new connection may take to prove that it knows
	// the secret.
	greetWithin = 5 * time.Second
	// maxStrangers is how many connections may be unproven at a time, in addition to one for
	// each rank.
	maxStrangers = 64
	// maxRest is the longest pause after an error of Accept.
	maxRest = time.Second
)

// A door accepts connections to rank 0. Anyone may connect. A stranger that does not prove in
// time that it knows the secret is disconnected; if there are too many, so is the oldest one.
type door struct {
	come      chan caller // ranks that proved it
	listeners []net.Listener
	cancel    func()
	all       sync.WaitGroup

	mu        sync.Mutex
	strangers []*peer // connections that have not proved it yet, oldest first
	most      int     // limit on strangers
	refused   int     // connections with another secret
	version   error   // of the last connection of another version
	err       error   // last error of Accept
}

// A caller is a rank that has connected to rank 0, and its hello.
type caller struct {
	peer  *peer
	hello message
}

// openDoor listens at w.Address until close.
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

// close disconnects the strangers. Ranks that have come stay connected.
func (d *door) close() {
	d.cancel()
	for _, l := range d.listeners {
		_ = l.Close()
	}
	d.all.Wait()
}

// accept serves each connection in a goroutine, so that a silent one delays no other. After an
// error, such as too many open files, it tries again.
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

// heard returns the hello of a caller that knows the secret.
func (p *peer) heard(ctx context.Context, secret string) (hello message, err error) {
	forget := p.hurry(ctx)
	defer func() { err = cmp.Or(err, forget()) }()
	if err := p.greet(secret, false); err != nil {
		return hello, err
	}
	if hello, err = p.read(maxHello); err == nil && hello.Kind != "hello" {
		err = errNoMessage
	}
	return hello, err
}

// hurry limits reads and writes to greetWithin, and ends them when ctx is done, until forget is
// called.
func (p *peer) hurry(ctx context.Context) (forget func() error) {
	_ = p.conn.SetDeadline(time.Now().Add(greetWithin)) // if the connection is closed, Read reports it
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Now()) })
	return func() error {
		if !stop() {
			return ctx.Err()
		}
		return p.conn.SetDeadline(time.Time{})
	}
}

// enter adds a stranger, and disconnects the oldest one if there are too many.
func (d *door) enter(p *peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.strangers = append(d.strangers, p); len(d.strangers) > d.most {
		d.turnAway()
	}
}

// turnAway disconnects the oldest stranger. Caller holds mu.
func (d *door) turnAway() {
	if len(d.strangers) > 0 {
		_ = d.strangers[0].conn.Close()
		d.strangers = d.strangers[1:]
	}
}

// leave removes p from the strangers, and reports whether it may come in: not after err, nor after
// turnAway.
func (d *door) leave(p *peer, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(err, errSeal) {
		d.refused++
	}
	if errors.As(err, new(*versionError)) {
		d.version = err
	}
	at := slices.Index(d.strangers, p)
	if at < 0 {
		return false
	}
	d.strangers = slices.Delete(d.strangers, at, at+1)
	return err == nil
}

// failed records an error of Accept. It disconnects a stranger, in case files ran out.
func (d *door) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	d.turnAway()
}

// trouble describes what went wrong at the door, for the error that ranks are missing.
func (d *door) trouble() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := ""
	if d.refused > 0 {
		text += fmt.Sprintf(", and connections with another %s or none came (%d)", SecretEnv, d.refused)
	}
	if d.version != nil {
		text += fmt.Sprintf(", and %v came", d.version)
	}
	if d.err != nil {
		text += fmt.Sprintf(", and connections failed (%v)", d.err)
	}
	return text
}

// A network connects ranks.
type network interface {
	// listen listens at the address of rank 0. oneHost: all ranks are on this host.
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

// listenAt returns the addresses of this host at which rank 0 listens if ranks dial host.
func listenAt(ctx context.Context, host string, oneHost bool) []string {
	if isLoopback(host) {
		return []string{host}
	}
	ips, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // if it fails, other hosts may resolve it
	own, _ := net.InterfaceAddrs()                             // if it fails, no address is known to be own
	return ownAddresses(ips, own, oneHost)
}

// ownAddresses returns those of ips that are addresses of this host, among own. It returns "", all
// interfaces, if other hosts could reach it at none of them: a name may be a gateway's, and many
// hosts resolve their own to 127.0.1.1. Loopback addresses count if all ranks are on one host.
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
		incomplete := ip.IsLinkLocalUnicast() && ip.Is6() && ip.Zone() == "" // the link is not known
		if text := ip.String(); !incomplete && slices.ContainsFunc(own, isOwn) && !slices.Contains(at, text) {
			at = append(at, text)
		}
	}
	if at == nil {
		return []string{""}
	}
	return at
}
