package data

import (
	"context"
	"errors"
	"net"
	"net/http"
)

// A web is hosts that are reached over pipes, so that a bubble of testing/synctest has the time
// to itself.
type web struct {
	version2 bool // of HTTP
	hosts    map[string]http.HandlerFunc
}

// client is one for which there are no other hosts.
func (w *web) client() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!w.version2)
	protocols.SetUnencryptedHTTP2(w.version2)
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		Protocols:         protocols,
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
				server := http.Server{Handler: serve, Protocols: protocols}
				_ = server.Serve(&once{conn: there}) // ends at once, and its connection with the client's
			}()
			return here, nil
		},
	}}
}

// once is a listener to which one comes.
type once struct{ conn net.Conn }

func (l *once) Accept() (conn net.Conn, err error) {
	if conn, l.conn = l.conn, nil; conn == nil {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l *once) Close() error   { return nil }
func (l *once) Addr() net.Addr { return &net.TCPAddr{} }
