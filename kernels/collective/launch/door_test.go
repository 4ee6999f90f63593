package launch

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"mlpool/internal/must"
)

// TestAcceptFails has Accept fail while rank 0 waits, as with too many open files.
func TestAcceptFails(t *testing.T) {
	for _, fails := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			l := newLobby()
			for range fails {
				l.errs <- &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
			}
			p := process(0, 2)
			p.Within = time.Hour
			for rank, err := range ranks(l, p, nil, leave) {
				if err != nil {
					t.Errorf("rank %d after %d errors: %v", rank, fails, err)
				}
			}
		})
	}
}

// TestManyStrangers connects more silent strangers than may stay. The last ones stay, though not for
// long, and a rank comes past them.
func TestManyStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLobby()
		var open atomic.Int32
		go func() {
			for range 500 {
				conn, err := l.await()
				if err != nil {
					t.Error(err)
					return
				}
				open.Add(1)
				go func() {
					_, _ = io.Copy(io.Discard, conn)
					open.Add(-1)
				}()
			}
		}()
		rank0 := make(chan error, 1)
		go func() { rank0 <- meet(l, process(0, 2), leave) }()
		synctest.Wait()
		if n := open.Load(); n != 2+maxStrangers {
			t.Errorf("%d strangers are connected, want %d", n, 2+maxStrangers)
		}
		time.Sleep(greetWithin)
		synctest.Wait()
		if n := open.Load(); n != 0 {
			t.Errorf("%d strangers are connected after %v", n, greetWithin)
		}
		must.OK(t, meet(l, process(1, 2), leave), <-rank0)
	})
}

// TestTurnedAway disconnects a rank, for one that came after it or for want of files, just as it has
// proved that it knows the secret. It may not come in, since its connection is closed.
func TestTurnedAway(t *testing.T) {
	d := &door{most: 1}
	first, last := newPeer(0, new(net.TCPConn)), newPeer(0, new(net.TCPConn))
	d.enter(first)
	d.enter(last)
	if d.leave(first, nil) {
		t.Error("a connection that was turned away comes in")
	}
	if d.leave(last, errSeal) || d.leave(last, nil) {
		t.Error("a stranger comes in")
	}
	d.enter(first)
	d.failed(syscall.EMFILE)
	if d.leave(first, nil) {
		t.Error("a failed Accept turns nobody away")
	}
	d.enter(last)
	if !d.leave(last, nil) {
		t.Error("a rank does not come in")
	}
}

// TestListen wants rank 0 to listen only at the address that others dial.
func TestListen(t *testing.T) {
	own, err := net.InterfaceAddrs()
	must.OK(t, err)
	for _, a := range own {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		at, err := tcp{}.listen(t.Context(), net.JoinHostPort(prefix.Addr().String(), "0"), false)
		if err != nil {
			continue // an IPv6 address may not be ready yet
		}
		for _, l := range at {
			if host, _, err := net.SplitHostPort(l.Addr().String()); err != nil || host != prefix.Addr().String() {
				t.Errorf("for %s rank 0 listens at %s", a, l.Addr())
			}
			must.OK(t, l.Close())
		}
	}
}

func TestOwnAddresses(t *testing.T) {
	var own []net.Addr
	for _, prefix := range []string{"127.0.0.1/8", "::1/128", "10.0.0.1/24", "fe80::1/64", "192.168.7.1/24"} {
		ip, network, err := net.ParseCIDR(prefix)
		must.OK(t, err)
		own = append(own, &net.IPNet{IP: ip, Mask: network.Mask})
	}
	for _, c := range []struct {
		ips     []string
		oneHost bool
		want    []string
	}{
		{[]string{"10.0.0.1"}, false, []string{"10.0.0.1"}},
		{[]string{"::ffff:10.0.0.1", "10.0.0.1"}, false, []string{"10.0.0.1"}},
		{[]string{"fe80::1%eth0", "192.168.7.1"}, false, []string{"fe80::1%eth0", "192.168.7.1"}},
		{[]string{"10.0.0.2", "192.168.7.1"}, false, []string{"192.168.7.1"}},
		{[]string{"127.0.1.1"}, false, []string{""}},             // a host's own name, on Debian
		{[]string{"127.0.0.1", "10.0.0.2"}, false, []string{""}}, // a gateway
		{[]string{"127.0.1.1", "::1"}, true, []string{"127.0.1.1", "::1"}},
		{[]string{"10.0.0.2"}, true, []string{""}},
		{[]string{"fe80::1"}, false, []string{""}},
		{nil, false, []string{""}},
	} {
		var ips []netip.Addr
		for _, ip := range c.ips {
			ips = append(ips, netip.MustParseAddr(ip))
		}
		if got := ownAddresses(ips, own, c.oneHost); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.ips, got, c.want)
		}
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if got := listenAt(t.Context(), host, false); !slices.Equal(got, []string{host}) {
			t.Errorf("%s: %q", host, got)
		}
	}
}

// TestSeals sends lines that need no secret: lines of two ranks that were changed, repeated or moved.
func TestSeals(t *testing.T) {
	ends := func(nonces string) (rank, rank0 *peer) {
		rank, rank0 = new(peer), new(peer)
		must.OK(t, rank.seal(secret, []byte(nonces), []byte("b"), true), rank0.seal(secret, []byte(nonces), []byte("b"), false))
		return rank, rank0
	}
	rank, rank0 := ends("a")
	first, second, back := rank.sent.put([]byte("first")), rank.sent.put([]byte("second")), rank0.sent.put([]byte("first"))
	elsewhere, _ := ends("c")
	for name, c := range map[string]struct {
		lines [][]byte
		good  int
	}{
		"as sent":            {[][]byte{first, second}, 2},
		"again":              {[][]byte{first, first}, 1},
		"out of order":       {[][]byte{second}, 0},
		"back":               {[][]byte{back}, 0},
		"another connection": {[][]byte{elsewhere.sent.put([]byte("first"))}, 0},
		"another text":       {[][]byte{bytes.Replace(first, []byte("first"), []byte("fists"), 1)}, 0},
		"a shorter seal":     {[][]byte{first[2:]}, 0},
		"no seal":            {[][]byte{[]byte(" first\n")}, 0},
		"nothing":            {[][]byte{nil}, 0},
	} {
		_, at := ends("a")
		for i, line := range c.lines {
			if text, err := at.received.take(line); (err == nil) != (i < c.good) {
				t.Errorf("%s: line %d is %q, %v", name, i, text, err)
			}
		}
	}
}

// TestNonces wants another nonce in each greeting, so that no line of an earlier connection passes.
func TestNonces(t *testing.T) {
	var nonces [2]string
	for i := range nonces {
		here, there := net.Pipe()
		go func() { _ = newPeer(0, here).greet(secret, true) }() // it fails, as nobody answers
		var g greeting
		must.OK(t, json.NewDecoder(there).Decode(&g), there.Close())
		nonces[i] = string(g.Nonce)
	}
	if len(nonces[0]) != nonceBytes || nonces[0] == nonces[1] {
		t.Errorf("nonces %q", nonces)
	}
}

// TestUserSecret has ranks create the file of the secret at the same time.
func TestUserSecret(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	var all sync.WaitGroup
	var secrets [8]string
	var errs [8]error
	for i := range secrets {
		all.Go(func() { secrets[i], errs[i] = userSecret() })
	}
	all.Wait()
	must.OK(t, errs[:]...)
	for _, s := range secrets {
		if s != secrets[0] || len(s) < leastSecret {
			t.Errorf("the secrets are %q", secrets)
		}
	}
	files, err := filepath.Glob(filepath.Join(cache, "mlpool", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the files are %q, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	must.OK(t, os.Chmod(files[0], 0o640))
	if s, err := userSecret(); err == nil {
		t.Errorf("%q can be read by others", s)
	}
	must.OK(t, os.Chmod(files[0], 0o600), os.Truncate(files[0], 3))
	if s, err := userSecret(); err == nil {
		t.Errorf("the secret is %q", s)
	}
}
