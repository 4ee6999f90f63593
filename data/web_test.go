package data

import (
	"context"
	"errors"
	"net"
	"net/http"
)

// A web is a set of hosts that are reached over pipes, so that a bubble of testing/synctest
// controls their time.
type web struct{ hosts map[string]http.HandlerFunc }

// client returns a client that reaches no other hosts.
func (w *web) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			serve := w.hosts[host]
			if serve == nil {
				return nil, errors.New("connection refused")
			}
			here, there := net.Pipe()
			go func() {
				server := http.Server{Handler: serve}
				_ = server.Serve(&once{conn: there}) // ends at once, and its connection with the client's
			}()
			return here, nil
		},
	}}
}

// once is a listener that accepts one connection.
type once struct{ conn net.Conn }

func (l *once) Accept() (conn net.Conn, err error) {
	if conn, l.conn = l.conn, nil; conn == nil {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l *once) Close() error   { return nil }
func (l *once) Addr() net.Addr { return &net.TCPAddr{} }
