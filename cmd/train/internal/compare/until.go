package compare

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"mlpool/configs"
)

// UntilEpochs is the largest number of epochs with -until, unless -until or the config has a larger
// one.
const UntilEpochs = 100

// A Target is the value of -until: a comparison continues until each allocator's time, as a ratio
// to the first's, is known to within a percentage, or until a number of epochs.
type Target struct {
	Percent float64 // 0: -until is not given
	epochs  int     // 0: not given
}

// Set parses the value of -until, as in 1%, 0.5 or 1%,200.
func (t *Target) Set(value string) (err error) {
	precision, epochs, bounded := strings.Cut(value, ",")
	percent, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(precision), "%")), 64)
	if err != nil || !(percent > 0 && percent < 100) {
		return errors.New("want a percentage above 0 and below 100, as in -until 1%")
	}
	*t = Target{Percent: percent}
	if !bounded {
		return nil
	}
	t.epochs, err = strconv.Atoi(strings.TrimSpace(epochs))
	if err != nil || t.epochs < leastEpochs {
		return fmt.Errorf("want %d epochs or more after the comma, as in -until 1%%,200", leastEpochs)
	}
	return nil
}

func (t Target) String() string { return strconv.FormatFloat(t.Percent, 'g', -1, 64) + " %" }

// Bound returns the largest number of epochs for a config.
func (t Target) Bound(cfg configs.Config) (int, error) {
	switch {
	case t.Percent == 0:
		return cfg.Train.NumEpochs, nil
	case t.epochs == 0:
		return max(cfg.Train.NumEpochs, UntilEpochs), nil
	case t.epochs < cfg.Train.NumEpochs:
		return 0, cfg.Errorf("train.num_epochs", "is %d, and -until ends the comparison after %d: raise one or lower the other", cfg.Train.NumEpochs, t.epochs)
	}
	return t.epochs, nil
}

// margin returns the largest distance of an interval's end from its estimate, in percent. It is
// infinite if an interval is unknown.
func (all Results) margin() (percent float64) {
	for _, r := range all.Runs[1:] {
		percent = max(percent, r.paired.Margin())
	}
	return percent
}

// Reached reports whether a comparison needs no more epochs: it has done least or more, and its
// results are as precise as -until asks. Without -until it is false.
func (t Target) Reached(epochs, least int, all func() Results) bool {
	return t.Percent > 0 && epochs >= least && all().margin() <= t.Percent
}

// print reports whether results are as precise as -until asks.
func (t Target) print(w io.Writer, all Results) {
	margin := all.margin()
	switch {
	case t.Percent == 0:
	case margin <= t.Percent:
		fmt.Fprintf(w, "known to within %s, as -until asks\n", t)
	case math.IsInf(margin, 1):
		fmt.Fprintf(w, "not known to within %s, as -until asks\n", t)
	default:
		fmt.Fprintf(w, "known to within %.1f %%, and -until asks for %s\n", margin, t)
	}
}
