package checkpoint

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// file returns a file with a header and n bytes of elements.
func file(header string, elements int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, elements)...)
}

func TestReadHostileFiles(t *testing.T) {
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":           {nil, "cut off"},
		"no header":       {file("", 0), "not a JSON object"},
		"header of 2^63":  {[]byte{0, 0, 0, 0, 0, 0, 0, 128, '{', '}'}, "a header of 9223372036854775808 bytes"},
		"huge header":     {file(strings.Repeat(" ", maxHeader+1), 0), "that may have one of 1048576"},
		"not an object":   {file(`[1,2]`, 0), "not a JSON object"},
		"metadata number": {file(`{"__metadata__":{"epoch":1}}`, 0), "__metadata__ is not an object of strings"},
		"dtype":           {file(`{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}`, 4), `elements of type "F16"`},
		"no dtype":        {file(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, 4), `elements of type ""`},
		"no entry":        {file(`{"a":3}`, 0), `tensor "a" has no type, `},
		"float offset":    {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.5]}}`, 4), `tensor "a" has no type, `},
		"beyond the file": {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 4), "the file is cut off: it has 4 of its tensors' 8 bytes"},
		"backwards":       {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}}`, 4), "at bytes 0 to -4"},
		"negative":        {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`, 4), "at bytes -4 to 0"},
		"overlap": {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12),
			`"b" is at bytes 4 to 12, want it to begin at 8`},
		"gap":                  {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8), "want it to begin at 0"},
		"rest":                 {file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 8), "8 bytes of elements, and the tensors have 4"},
		"shape":                {file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}}`, 4), "of shape [3] has 4 bytes"},
		"shape of none":        {file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`, 0), "of shape [0] has 0 bytes"},
		"negative shape":       {file(`{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}`, 4), "of shape [-1 -1]"},
		"shape that overflows": {file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0), "of shape "},
		"shape that wraps":     {file(`{"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}}`, 4), "of shape "},
	} {
		_, _, err := readSafetensors(bytes.NewReader(c.file), int64(len(c.file)))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "json: ") {
			t.Errorf("%s: error %v, want one line with %q", name, err, c.want)
		}
	}
}
