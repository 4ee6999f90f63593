package launch

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// A lobby is a network of pipes, so that ranks meet in a bubble of testing/synctest, which controls
// the time. Only one listener may use it.
type lobby struct {
	conns          chan net.Conn
	errs           chan error // of Accept, before any connection
	opened, closed chan struct{}
	close          func()
}

func newLobby() *lobby {
	l := &lobby{conns: make(chan net.Conn), errs: make(chan error, 100), opened: make(chan struct{}), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

var errNobody = errors.New("nobody listens")

func (l *lobby) listen(context.Context, string, bool) ([]net.Listener, error) {
	close(l.opened)
	return []net.Listener{l}, nil
}

func (l *lobby) dial(ctx context.Context, _ string) (net.Conn, error) {
	select {
	case <-l.opened:
	default:
		return nil, errNobody
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, errNobody
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// await dials once there is a listener.
func (l *lobby) await() (net.Conn, error) {
	<-l.opened
	return l.dial(context.Background(), "")
}

func (l *lobby) Accept() (net.Conn, error) {
	select {
	case err := <-l.errs:
		return nil, err
	default:
	}
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *lobby) Close() error {
	l.close()
	return nil
}

func (l *lobby) Addr() net.Addr { return &net.TCPAddr{} }

// secret is the secret of the launches in these tests.
const secret = "what ranks know and others do not"

// process returns a rank that meets the others in a lobby.
func process(rank, size int) Process {
	return Process{Rank: rank, Size: size, Address: "lobby:9", Secret: secret, Within: time.Minute}
}
