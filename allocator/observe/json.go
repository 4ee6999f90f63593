package observe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

var errNotSnapshot = errors.New("is JSON, but not a snapshot of torch.cuda.memory")

// readJSON reads a snapshot, or the list of torch.cuda.memory_snapshot, that was written as JSON: as the pickle of
// the same values.
func readJSON(in io.Reader, device int) (*Requests, error) {
	values := json.NewDecoder(in)
	values.UseNumber()
	var v any
	if err := values.Decode(&v); err != nil {
		return nil, fmt.Errorf("is JSON that cannot be read: %w", err)
	}
	if _, err := values.Token(); err != io.EOF {
		return nil, errors.New("continues after its JSON")
	}
	if dict, isDict := v.(map[string]any); isDict && dict["traceEvents"] != nil {
		return nil, errors.New("is JSON for Perfetto, which is never read: have the trainer write a .csv or a .pickle")
	}
	var text bytes.Buffer
	p := newPickler(&text)
	p.json(v)
	if err := p.finish(); err != nil {
		return nil, err
	}
	r, err := readSnapshot(bufio.NewReader(&text), device)
	if errors.Is(err, errUnreadable) {
		err = errNotSnapshot
	}
	return r, err
}

// json writes a value of JSON. A list of two numbers is a tuple, as the id of a pool is.
func (p *pickler) json(v any) {
	switch v := v.(type) {
	case map[string]any:
		p.dict(func() {
			for key, member := range v {
				p.text(key)
				p.json(member)
			}
		})
	case []any:
		if len(v) == 2 && isNumber(v[0]) && isNumber(v[1]) {
			p.json(v[0])
			p.json(v[1])
			p.out.WriteByte(opTuple2)
			return
		}
		p.list(len(v), func(i int) { p.json(v[i]) })
	case string:
		p.text(v)
	case bool:
		p.bool(v)
	case json.Number:
		n, err := v.Int64()
		if err != nil { // a fraction
			p.out.WriteByte(opNone)
			return
		}
		p.int(n)
	default:
		p.out.WriteByte(opNone)
	}
}

func isNumber(v any) bool {
	_, ok := v.(json.Number)
	return ok
}
