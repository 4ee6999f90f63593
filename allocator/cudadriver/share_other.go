//go:build !linux

package cudadriver

import "net"

// CUDA devices need Linux, so there are no pages to send or receive.

func sendParts(*net.UnixConn, header, []Part, func(uintptr) (int, error)) error {
	return check("ExportPages", codeNone)
}

func receiveParts(*net.UnixConn, func(header) error, func(int, int64) error) (header, error) {
	return header{}, check("ImportPages", codeNone)
}
