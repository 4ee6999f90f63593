package report

import (
	"math"
	"testing"

	"mlpool/internal/plotstyle"
)

// TestAxis wants linear and logarithmic places, and the nearest end for values beyond an axis.
func TestAxis(t *testing.T) {
	linear, log := axis{low: 10, high: 30}, axis{low: 0.1, high: 1000, log: true}
	for _, c := range []struct {
		axis        axis
		value, want float64
	}{
		{linear, 10, 0}, {linear, 15, 0.25}, {linear, 30, 1}, {linear, 9, 0}, {linear, 1e9, 1},
		{log, 0.1, 0}, {log, 1, 0.25}, {log, 1000, 1}, {log, 0, 0}, {log, -5, 0}, {log, math.Inf(1), 1},
	} {
		if got := c.axis.share(c.value); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%g on %+v: %g, want %g", c.value, c.axis, got, c.want)
		}
	}
}

// TestPlot wants room for the labels of both axes, the low ends at the lower left, and every label inside.
func TestPlot(t *testing.T) {
	d := &drawing{width: 200, height: 100}
	p := newPlot(d, axis{low: 0, high: 1, label: "x"}, axis{low: 0, high: 10, ticks: []plotstyle.Tick{{Value: 0, Label: "0"}, {Value: 10, Label: "10 GiB"}}})
	if low, high := p.at(0, 0), p.at(1, 10); low != (point{p.left, p.bottom}) || high != (point{p.right, p.top}) {
		t.Errorf("from %v to %v", low, high)
	}
	if room := plotstyle.TextWidth("10 GiB", fontSize); p.left < room || p.right > d.width || p.bottom > d.height-2*fontSize || p.top < fontSize/2 {
		t.Errorf("the frame is %g to %g and %g to %g; labels need %g", p.left, p.right, p.top, p.bottom, room)
	}
}

func TestEscaped(t *testing.T) {
	const bad = `<b a="'">&`
	for _, c := range []struct {
		got, want markup
	}{
		{escaped("<p>%s %d %v</p>", bad, 7, 0.5), "<p>&lt;b a=&#34;&#39;&#34;&gt;&amp; 7 0.5</p>"},
		{escaped("%s%s", markup("<br>"), escaped("%s", "<br>")), "<br>&lt;br&gt;"},
		{escaped("%v", roleName(bad)), "&lt;b a=&#34;&#39;&#34;&gt;&amp;"},
		{cells("a", "<"), "<td>a</td><td>&lt;</td>"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

// A roleName is a text with a type of its own.
type roleName string
