package launch

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nonceBytes is the length of a nonce.
const nonceBytes = 32

// A greeting is the first line in each direction of a connection, the only one without a seal.
type greeting struct {
	Program string
	Nonce   []byte
}

// greet exchanges greetings, and derives the keys for all later lines from the secret, the nonces of
// both sides and the direction.
func (p *peer) greet(secret string, caller bool) error {
	mine := greeting{program, make([]byte, nonceBytes)}
	_, _ = rand.Read(mine.Nonce) // never fails
	theirs := greeting{}
	say := func() error { return json.NewEncoder(p.conn).Encode(mine) }
	hear := func() error {
		line, err := p.readLine(maxHello)
		if err != nil {
			return err
		}
		err = json.Unmarshal(line, &theirs)
		if v := versionOf(theirs.Program); err == nil && v != "" && v != protocol {
			return &versionError{v}
		}
		if err != nil || theirs.Program != program || len(theirs.Nonce) != nonceBytes {
			return errNoMessage
		}
		return nil
	}
	order := []func() error{hear, say}
	if caller {
		slices.Reverse(order)
	}
	for _, step := range order {
		if err := step(); err != nil {
			if !caller && errors.As(err, new(*versionError)) {
				_ = say() // so that the other side can say it too
			}
			return err
		}
	}
	if caller {
		return p.seal(secret, mine.Nonce, theirs.Nonce, true)
	}
	return p.seal(secret, theirs.Nonce, mine.Nonce, false)
}

// A versionError is about a program that speaks another version of the protocol. Of its greeting, which has no
// seal, only the version is printed, once it has proved to be a number.
type versionError struct{ theirs string }

func (e *versionError) Error() string {
	return fmt.Sprintf("another version of this program (protocol %s, and here %s)", e.theirs, protocol)
}

// versionOf returns the version of a program that a greeting names, or "" if it is no number.
func versionOf(name string) string {
	text, ours := strings.CutPrefix(name, programs)
	n, err := strconv.ParseUint(text, 10, 16)
	if !ours || err != nil {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// seal sets the seals of a connection, of its caller or of rank 0.
func (p *peer) seal(secret string, callers, rank0s []byte, caller bool) error {
	nonces := slices.Concat(callers, rank0s)
	up, err := hkdf.Key(sha256.New, []byte(secret), nonces, program+", to rank 0", sha256.Size)
	if err != nil {
		return err
	}
	down, err := hkdf.Key(sha256.New, []byte(secret), nonces, program+", from rank 0", sha256.Size)
	if caller {
		p.sent, p.received = seal{key: up}, seal{key: down}
	} else {
		p.sent, p.received = seal{key: down}, seal{key: up}
	}
	return err
}

// A seal authenticates the lines in one direction of a connection: a sender that knows the secret
// sent all of them, on this connection, in this order. It is a MAC of a line and its number.
type seal struct {
	key   []byte
	lines uint64
}

func (s *seal) mac(text []byte) []byte {
	h := hmac.New(sha256.New, s.key)
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, s.lines)) // never fails
	_, _ = h.Write(text)
	s.lines++
	return h.Sum(nil)
}

// put returns a text as a line with its seal.
func (s *seal) put(text []byte) []byte {
	line := hex.AppendEncode(nil, s.mac(text))
	return append(append(append(line, ' '), text...), '\n')
}

// take returns the text of a line if its seal is right.
func (s *seal) take(line []byte) ([]byte, error) {
	digits, text, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	mac, err := hex.AppendDecode(nil, digits)
	if want := s.mac(text); err != nil || !hmac.Equal(mac, want) {
		return nil, errSeal
	}
	return text, nil
}
