package report

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"

	"mlpool/internal/gap"
	"mlpool/internal/text"
)

// mapped returns the moments with a map. If there are none, a Peak stands for one.
func (r Recording) mapped() []Moment {
	var all []Moment
	for _, m := range r.Moments {
		if m.Map != nil {
			all = append(all, m)
		}
	}
	if len(all) == 0 && r.Peak != nil {
		all = append(all, Moment{Map: r.Peak})
	}
	return all
}

// fullest returns the index of the first moment with most reserved bytes.
func fullest(all []Moment) int {
	at := 0
	for i, m := range all {
		if m.Gap.Reserved > all[at].Gap.Reserved {
			at = i
		}
	}
	return at
}

// when names the time of a moment.
func (p Page) when(m Moment) string {
	if p.Replay {
		return fmt.Sprintf("request %.0f", m.MS)
	}
	return digits(m.MS) + " ms"
}

// gapText writes a split in one line.
func gapText(s gap.Split) string {
	said := fmt.Sprintf("%s live of %s reserved", text.Bytes(s.Live), text.Bytes(s.Reserved))
	for i, c := range largestCauses(s) {
		mark := ", "
		if i == 0 {
			mark = ". Not live: "
		}
		said += mark + c.String() + " " + text.Bytes(s.Bytes[c])
	}
	return said + "."
}

// thinned returns the indices of n of all moments, evenly spread. The moment keep is one of them.
func thinned(all, n, keep int) []int {
	n = max(1, min(n, all))
	var out []int
	for i := range n {
		at := i * all / n
		next := (i + 1) * all / n
		if at <= keep && keep < next {
			at = keep
		}
		out = append(out, at)
	}
	return out
}

// mostMapBytes is the largest size of the encoded maps of a page. The rest of a page of four runs needs up to 3 MiB.
const mostMapBytes = 6 << 20

// A slider is the maps of a run at all moments that the page shows.
type slider struct {
	Data        string // of encode
	Peak        int    // index of the moment that the page shows first
	Shown, Most int    // moments: shown, and recorded
}

// sliders returns a slider for each run, with as many moments as fit in most bytes. That of a run with
// fewer than two maps is zero.
func (p Page) sliders(c colours, bytes int64, most int) ([]slider, error) {
	out := make([]slider, len(p.Runs))
	for share := 1.; ; {
		sum := 0
		for i, r := range p.Runs {
			all := r.mapped()
			if len(all) < 2 {
				continue
			}
			picked := thinned(len(all), int(share*float64(len(all))), fullest(all))
			var few []Moment
			for _, at := range picked {
				few = append(few, all[at])
			}
			data, err := p.encode(r.Name, few, newMapPainter(c, bytes))
			if err != nil {
				return nil, err
			}
			out[i] = slider{data, fullest(few), len(few), len(all)}
			sum += len(data)
		}
		if sum <= most || share < 1e-4 {
			return out, nil
		}
		share *= min(0.9, 0.95*float64(most)/float64(sum))
	}
}

// An encoder writes panels for moments.js. All numbers are varints. Texts and boxes that occur again are
// written once and referred to by number.
type encoder struct {
	texts  map[string]uint64
	boxes  map[box]uint64
	tables [2][]byte // texts and boxes
}

func (e *encoder) text(s string) uint64 {
	id, known := e.texts[s]
	if !known {
		id = uint64(len(e.texts))
		e.texts[s] = id
		e.tables[0] = binary.AppendUvarint(e.tables[0], uint64(len(s)))
		e.tables[0] = append(e.tables[0], s...)
	}
	return id
}

// box returns the number of a box, without its place.
func (e *encoder) box(b box) uint64 {
	b.Start, b.Addr = 0, 0
	id, known := e.boxes[b]
	if !known {
		id = uint64(len(e.boxes))
		e.boxes[b] = id
		for _, s := range []string{b.Class, b.Label, b.Text, b.Stream, b.Pool} {
			e.tables[1] = binary.AppendUvarint(e.tables[1], e.text(s))
		}
		e.tables[1] = binary.AppendUvarint(e.tables[1], inBytes(b.Length))
	}
	return id
}

// inBytes returns a length of a lane in bytes.
func inBytes(mib float64) uint64 { return uint64(math.Round(mib * mebibyte)) }

// lane appends a lane: its name, length, marks and boxes. A box is twice its number. If it does not
// continue the one before it, it is one more, and its distance in the lane and in addresses follow.
func (e *encoder) lane(out []byte, l lane) []byte {
	for _, v := range []uint64{e.text(l.Name), inBytes(l.Used), inBytes(l.Ticks), uint64(len(l.Boxes))} {
		out = binary.AppendUvarint(out, v)
	}
	var at uint64
	var addr uintptr
	for _, b := range l.Boxes {
		skip := inBytes(b.Start) - at
		id := 2 * e.box(b)
		if skip == 0 && b.Addr == addr {
			out = binary.AppendUvarint(out, id)
		} else {
			out = binary.AppendUvarint(out, id+1)
			out = binary.AppendUvarint(out, skip)
			out = binary.AppendVarint(out, int64(b.Addr-addr))
		}
		at += skip + inBytes(b.Length)
		addr = b.Addr + uintptr(inBytes(b.Length))
	}
	return out
}

// encode returns the maps of a run as base64 of a deflate stream: the texts, the boxes and the moments, each
// after their number, and each moment after its length.
func (p Page) encode(run string, all []Moment, d *mapPainter) (string, error) {
	e := encoder{texts: map[string]uint64{}, boxes: map[box]uint64{}}
	var bodies []byte
	for _, m := range all {
		drawn := d.draw(run, m.Map)
		body := binary.AppendUvarint(nil, uint64(max(0, m.MS)))
		for _, s := range []string{p.when(m), gapText(m.Gap), segmentsText(m.Map), drawn.Note} {
			body = binary.AppendUvarint(body, e.text(s))
		}
		legend := shares(m.Map, d.colours)
		body = binary.AppendUvarint(body, uint64(len(legend)))
		for _, s := range legend {
			for _, s := range []string{s.Class, s.Name, s.amount()} {
				body = binary.AppendUvarint(body, e.text(s))
			}
		}
		body = binary.AppendUvarint(body, uint64(len(drawn.Lanes)))
		for _, l := range drawn.Lanes {
			body = e.lane(body, l)
		}
		bodies = binary.AppendUvarint(bodies, uint64(len(body)))
		bodies = append(bodies, body...)
	}
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.DefaultCompression)
	if err != nil {
		return "", err
	}
	for _, part := range [][]byte{
		binary.AppendUvarint(nil, uint64(len(e.texts))), e.tables[0],
		binary.AppendUvarint(nil, uint64(len(e.boxes))), e.tables[1],
		binary.AppendUvarint(nil, uint64(len(all))), bodies,
	} {
		if _, err := w.Write(part); err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes()), nil
}
