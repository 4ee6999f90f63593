package main

import (
	"fmt"
	"slices"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// An entry is what the database says of one vulnerability, in the fields of the
// OSV format (https://ossf.github.io/osv-schema) that are used here.
type entry struct {
	ID        string     `json:"id"`
	Withdrawn string     `json:"withdrawn,omitempty"` // the time when it was
	Affected  []affected `json:"affected"`
}

// affected is one module with its vulnerable versions.
type affected struct {
	Package struct {
		Name string `json:"name"` // the module's path
	} `json:"package"`
	Ranges []versions `json:"ranges"` // all versions where there is none
}

type versions struct {
	Events []event `json:"events"`
}

// An event is a version from which on a module is vulnerable, or is no more.
// Versions have no leading v; "0" is before all others.
type event struct {
	Introduced string `json:"introduced,omitempty"`
	Fixed      string `json:"fixed,omitempty"`
}

// status says whether the vulnerability is in a module at its version, and the
// first later version without it: "" where there is none yet.
func (e entry) status(m module.Version) (vulnerable bool, fixed string, err error) {
	unfixed := false
	for _, a := range e.Affected {
		if a.Package.Name != m.Path {
			continue
		}
		unfixed = unfixed || len(a.Ranges) == 0
		for _, r := range a.Ranges {
			in, fix, err := r.status(m.Version)
			if err != nil {
				return false, "", fmt.Errorf("%s: %w", m.Path, err)
			}
			vulnerable = vulnerable || in
			unfixed = unfixed || in && fix == ""
			fixed = later(fixed, fix)
		}
	}
	if unfixed {
		return true, "", nil
	}
	return vulnerable, fixed, nil
}

// status is that of one range of versions, and fixed "" where a module at this
// version is not vulnerable.
func (r versions) status(version string) (vulnerable bool, fixed string, err error) {
	type change struct {
		at         string // as semver has it, or "", which is before all others
		vulnerable bool
	}
	var changes []change
	for _, e := range r.Events {
		c := change{"v" + e.Introduced + e.Fixed, e.Introduced != ""}
		if c.at == "v0" {
			c.at = ""
		} else if !semver.IsValid(c.at) {
			return false, "", fmt.Errorf("%+v has no version that can be compared", e)
		}
		changes = append(changes, c)
	}
	slices.SortStableFunc(changes, func(a, b change) int { return semver.Compare(a.at, b.at) })
	for _, c := range changes {
		switch {
		case semver.Compare(c.at, version) <= 0:
			vulnerable = c.vulnerable
		case vulnerable && !c.vulnerable:
			return true, c.at, nil
		}
	}
	return vulnerable, "", nil
}

// later returns the later of two versions, of which "" is the earliest.
func later(a, b string) string {
	if semver.Compare(a, b) >= 0 {
		return a
	}
	return b
}
