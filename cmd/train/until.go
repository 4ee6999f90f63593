package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"mlpool/configs"
)

// untilEpochs is how many epochs a comparison trains at most to reach the precision that
// -until asks for, unless that or the config names more.
const untilEpochs = 100

// A target is what -until asks a comparison for: it goes on until each allocator's time, as a
// ratio to the first's, is known to within a percentage, or to a number of epochs.
type target struct {
	percent float64 // 0: -until is not given
	epochs  int     // 0: not given
}

// set reads the value of -until, as in 1%, 0.5 or 1%,200.
func (t *target) set(value string) (err error) {
	precision, epochs, bounded := strings.Cut(value, ",")
	percent, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(precision), "%")), 64)
	if err != nil || !(percent > 0 && percent < 100) {
		return errors.New("want a percentage above 0 and below 100, as in -until 1%")
	}
	*t = target{percent: percent}
	if !bounded {
		return nil
	}
	t.epochs, err = strconv.Atoi(strings.TrimSpace(epochs))
	if err != nil || t.epochs < leastEpochs {
		return fmt.Errorf("want %d epochs or more behind the comma, as in -until 1%%,200", leastEpochs)
	}
	return nil
}

func (t target) String() string { return strconv.FormatFloat(t.percent, 'g', -1, 64) + " %" }

// bound returns the most epochs that a run with the config trains.
func (t target) bound(cfg configs.Config) (int, error) {
	switch {
	case t.percent == 0:
		return cfg.Train.NumEpochs, nil
	case t.epochs == 0:
		return max(cfg.Train.NumEpochs, untilEpochs), nil
	case t.epochs < cfg.Train.NumEpochs:
		return 0, cfg.Errorf("train.num_epochs", "is %d, and -until ends the comparison after %d: raise one or lower the other", cfg.Train.NumEpochs, t.epochs)
	}
	return t.epochs, nil
}

// margin is how far the intervals of a comparison reach from their estimates, at most, in
// percent. It is infinite where one is not known.
func (all results) margin() (percent float64) {
	for _, r := range all.Runs[1:] {
		percent = max(percent, r.paired.Margin())
	}
	return percent
}

// met says whether results are as precise as -until asks. Without -until they never are.
func (t target) met(all results) bool { return t.percent > 0 && all.margin() <= t.percent }

// print says whether results got as precise as -until asks.
func (t target) print(w io.Writer, all results) {
	margin := all.margin()
	switch {
	case t.percent == 0:
	case margin <= t.percent:
		fmt.Fprintf(w, "known to within %s, as -until asks\n", t)
	case math.IsInf(margin, 1):
		fmt.Fprintf(w, "not known to within %s, as -until asks\n", t)
	default:
		fmt.Fprintf(w, "known to within %.1f %%, and -until asks for %s\n", margin, t)
	}
}
