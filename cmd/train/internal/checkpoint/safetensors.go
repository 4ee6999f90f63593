package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// A file in the format safetensors is the length of a header in eight bytes, the
// header, and the elements of all tensors. Numbers are little-endian. The header is a
// JSON object: a member for each tensor with its type, its shape and where its
// elements begin and end after the header, and __metadata__ with strings. Tensors are
// row-major, and lie side by side without a gap.
// https://github.com/huggingface/safetensors describes it.

// A namedTensor is an array of float32, row-major.
type namedTensor struct {
	Name  string
	Shape []int
	Data  []float32
}

// entry is the header's description of a tensor.
type entry struct {
	name    string
	Dtype   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"` // in bytes
}

const (
	metadataName = "__metadata__"
	float32Name  = "F32"
	// maxHeader is the largest header that is read, in bytes. A thousand layers need a tenth of it.
	maxHeader = 1 << 20
	// headerAlign is what spaces pad the header to, so that elements of a mapped file are aligned.
	headerAlign = 8
	// chunkLen is the number of elements that are converted at once.
	chunkLen = 1 << 14
)

// writeSafetensors writes tensors and metadata to w. Equal arguments give equal bytes.
func writeSafetensors(w io.Writer, tensors []namedTensor, metadata map[string]string) error {
	header := map[string]any{metadataName: metadata}
	end := int64(0)
	for _, t := range tensors {
		begin := end
		end += 4 * int64(len(t.Data))
		header[t.Name] = entry{Dtype: float32Name, Shape: t.Shape, Offsets: [2]int64{begin, end}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%headerAlign != 0 {
		text = append(text, ' ')
	}
	buffer := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if _, err := w.Write(append(buffer, text...)); err != nil {
		return err
	}
	return writeElements(w, tensors)
}

// writeElements writes the elements of all tensors, in order.
func writeElements(w io.Writer, tensors []namedTensor) (err error) {
	buffer := make([]byte, 0, 4*chunkLen)
	for _, t := range tensors {
		for chunk := range slices.Chunk(t.Data, chunkLen) {
			if buffer, err = binary.Append(buffer[:0], binary.LittleEndian, chunk); err != nil {
				return err
			}
			if _, err := w.Write(buffer); err != nil {
				return err
			}
		}
	}
	return nil
}

// readSafetensors reads a file of size bytes, and returns its tensors in the order of their
// elements. It trusts nothing in the header: element types other than float32, and ranges that
// overlap, leave a gap, do not fit their shape or do not cover the file are errors of one line.
// Memory stays within a small multiple of size.
func readSafetensors(r io.Reader, size int64) (tensors []namedTensor, metadata map[string]string, err error) {
	var length uint64
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
		return nil, nil, truncated(err)
	}
	if rest := uint64(max(size-8, 0)); length > rest || length > maxHeader {
		return nil, nil, fmt.Errorf("a header of %d bytes, in a file of %d that may have one of %d", length, size, min(rest, maxHeader))
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, nil, truncated(err)
	}
	if tensors, metadata, err = parseHeader(text, size-8-int64(length)); err != nil {
		return nil, nil, err
	}
	buffer := make([]byte, 4*chunkLen)
	for _, t := range tensors {
		for chunk := range slices.Chunk(t.Data, chunkLen) {
			raw := buffer[:4*len(chunk)]
			if _, err := io.ReadFull(r, raw); err != nil {
				return nil, nil, truncated(err)
			}
			if _, err := binary.Decode(raw, binary.LittleEndian, chunk); err != nil {
				return nil, nil, err
			}
		}
	}
	return tensors, metadata, nil
}

// parseHeader returns the tensors that a header describes, without their elements, which take size
// bytes.
func parseHeader(text []byte, bytes int64) (tensors []namedTensor, metadata map[string]string, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, nil, errors.New("the header is not a JSON object")
	}
	var entries []entry
	for name, raw := range members {
		if name == metadataName {
			if err := json.Unmarshal(raw, &metadata); err != nil {
				return nil, nil, fmt.Errorf("%s is not an object of strings", name)
			}
			continue
		}
		e := entry{name: name}
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, nil, fmt.Errorf("tensor %q has no type, shape and offsets of integers", name)
		}
		if e.Dtype != float32Name {
			return nil, nil, fmt.Errorf("tensor %q has elements of type %q, want %q", name, e.Dtype, float32Name)
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int { return slices.Compare(a.Offsets[:], b.Offsets[:]) })
	if n := len(entries); n > 0 && bytes < entries[n-1].Offsets[1] {
		return nil, nil, fmt.Errorf("the file is cut off: it has %d of its tensors' %d bytes", bytes, entries[n-1].Offsets[1])
	}
	at := int64(0)
	for _, e := range entries {
		begin, end := e.Offsets[0], e.Offsets[1]
		if begin != at || end < begin {
			return nil, nil, fmt.Errorf("tensor %q is at bytes %d to %d, want it to begin at %d, where the one before it ends", e.name, begin, end, at)
		}
		at = end
		if !fills(e.Shape, uint64(end-begin)) {
			return nil, nil, fmt.Errorf("tensor %q of shape %v has %d bytes", e.name, e.Shape, end-begin)
		}
	}
	if at != bytes {
		return nil, nil, fmt.Errorf("%d bytes of elements, and the tensors have %d", bytes, at)
	}
	for _, e := range entries {
		tensors = append(tensors, namedTensor{e.name, e.Shape, make([]float32, (e.Offsets[1]-e.Offsets[0])/4)})
	}
	return tensors, metadata, nil
}

// fills reports whether float32 elements of a shape take the given number of bytes. Dimensions
// below 1 do not.
func fills(shape []int, bytes uint64) bool {
	product := uint64(4)
	for _, n := range shape {
		hi, lo := bits.Mul64(product, uint64(n))
		if n < 1 || hi != 0 {
			return false
		}
		product = lo
	}
	return product == bytes
}

// truncated returns the error of a file that ends too early.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the file is cut off")
	}
	return err
}
