package launch

import (
	"encoding/json"
	"fmt"
	"slices"
)

// A Fact is something that must be the same on all ranks.
type Fact struct{ Key, Value string }

// Agree returns an error on all ranks if a fact differs from rank 0's. All ranks pass the same
// keys in the same order. The error names the first fact that differs, and ends with the remedy.
func (w *World) Agree(what string, facts []Fact, remedy string) error {
	mine, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	_, err = w.Exchange(what, mine, func(all [][]byte) ([]byte, error) {
		for rank := range all {
			var theirs []Fact
			if err := json.Unmarshal(all[rank], &theirs); err != nil {
				return nil, fmt.Errorf("rank %d: %w", rank, err)
			}
			for i, f := range facts {
				if len(theirs) != len(facts) || theirs[i].Key != f.Key {
					return nil, fmt.Errorf("rank %d is another version of the program: %s", rank, remedy)
				}
				if theirs[i].Value != f.Value {
					return nil, fmt.Errorf("%s is %s on rank %d, and %s on rank 0: %s", f.Key, printable(theirs[i].Value), rank, f.Value, remedy)
				}
			}
		}
		return nil, nil
	})
	return err
}

// AllDistinct returns an error on all ranks if two of them pass the same value of mine.
func (w *World) AllDistinct(what, mine, remedy string) error {
	_, err := w.Exchange(what, []byte(mine), func(all [][]byte) ([]byte, error) {
		for rank, theirs := range all {
			same := func(b []byte) bool { return string(b) == string(theirs) }
			if at := slices.IndexFunc(all[:rank], same); at >= 0 {
				return nil, fmt.Errorf("rank %d and rank %d are both on the %s %s: %s", at, rank, what, printable(string(theirs)), remedy)
			}
		}
		return nil, nil
	})
	return err
}
