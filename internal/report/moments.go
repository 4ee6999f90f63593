package report

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"errors"
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

// Fullest returns the index of the first moment with most reserved bytes.
func Fullest(all []Moment) int {
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
			picked := thinned(len(all), int(share*float64(len(all))), Fullest(all))
			var few []Moment
			for _, at := range picked {
				few = append(few, all[at])
			}
			data, err := p.encode(r.Name, few, newMapPainter(c, bytes))
			if err != nil {
				return nil, err
			}
			out[i] = slider{data, Fullest(few), len(few), len(all)}
			sum += len(data)
		}
		if sum <= most || share < 1e-4 {
			return out, nil
		}
		share *= min(0.9, 0.95*float64(most)/float64(sum))
	}
}

// A mapSet is the maps of a run, as moments.js reads them. Equal boxes are described once.
type mapSet struct {
	Kinds   []boxKind   `json:"kinds"`
	Moments []mapMoment `json:"moments"`
	numbers map[boxKind]int64
}

// A boxKind is a box without its place. Its length is in bytes.
type boxKind struct {
	Class  string `json:"class"`
	Label  string `json:"label"`
	Text   string `json:"text"`
	Stream string `json:"stream"`
	Pool   string `json:"pool"`
	Length int64  `json:"length"`
}

type mapMoment struct {
	MS       float64     `json:"ms"`
	When     string      `json:"when"`
	Gap      string      `json:"gap"`
	Segments string      `json:"segments"`
	Note     string      `json:"note"`
	Legend   [][3]string `json:"legend"` // class, name and amount
	Lanes    []mapLane   `json:"lanes"`
}

// A mapLane has lengths in bytes. A box is twice the number of its kind. If it does not continue the box before it,
// it is one more, and its distance in the lane and in addresses follow.
type mapLane struct {
	Name  string  `json:"name"`
	Used  int64   `json:"used"`
	Ticks int64   `json:"ticks"`
	Boxes []int64 `json:"boxes"`
}

// inBytes returns a length of a lane in bytes.
func inBytes(mib float64) int64 { return int64(math.Round(mib * mebibyte)) }

// lane returns a lane for moments.js.
func (m *mapSet) lane(l lane) mapLane {
	out := mapLane{Name: l.Name, Used: inBytes(l.Used), Ticks: inBytes(l.Ticks)}
	at, addr := int64(0), uintptr(0)
	for _, b := range l.Boxes {
		kind := boxKind{b.Class, b.Label, b.Text, b.Stream, b.Pool, inBytes(b.Length)}
		number, known := m.numbers[kind]
		if !known {
			number = int64(len(m.Kinds))
			m.numbers[kind] = number
			m.Kinds = append(m.Kinds, kind)
		}
		if skip := inBytes(b.Start) - at; skip == 0 && b.Addr == addr {
			out.Boxes = append(out.Boxes, 2*number)
		} else {
			out.Boxes = append(out.Boxes, 2*number+1, skip, int64(b.Addr-addr))
		}
		at, addr = inBytes(b.Start)+kind.Length, b.Addr+uintptr(kind.Length)
	}
	return out
}

// encode returns the maps of a run: JSON, compressed by deflate, in base64.
func (p Page) encode(run string, all []Moment, d *mapPainter) (string, error) {
	set := mapSet{numbers: map[boxKind]int64{}}
	for _, m := range all {
		drawn := d.draw(run, m.Map)
		moment := mapMoment{MS: m.MS, When: p.when(m), Gap: gapText(m.Gap), Segments: segmentsText(m.Map), Note: drawn.Note, Legend: [][3]string{}, Lanes: []mapLane{}}
		for _, s := range shares(m.Map, d.colours) {
			moment.Legend = append(moment.Legend, [3]string{s.Class, s.Name, s.amount()})
		}
		for _, l := range drawn.Lanes {
			moment.Lanes = append(moment.Lanes, set.lane(l))
		}
		set.Moments = append(set.Moments, moment)
	}
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.DefaultCompression)
	if err != nil {
		return "", err
	}
	if err := errors.Join(json.NewEncoder(w).Encode(set), w.Close()); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes()), nil
}
