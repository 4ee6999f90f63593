// Command vulncheck says which modules that go.mod requires have a published
// vulnerability, and fails where a later version fixes it.
//
// It reads the Go vulnerability database (https://go.dev/security/vuln/database).
// Where that is out of reach it says so, and reads recorded.json instead: entries
// of the database for these modules, without what was published since. Renew them
// where the database is in reach:
//
//	go run ./tools/vulncheck -record tools/vulncheck/recorded.json
//
// Vulnerabilities of the standard library are not looked for: they are fixed by
// a later Go, not in go.mod.
package main

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// publicDB is the database that is read unless -db names another; tests set it.
var publicDB = "https://vuln.go.dev"

//go:embed recorded.json
var recorded []byte

func main() {
	err := run(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "vulncheck: %v\n", err)
		os.Exit(1)
	}
}

// run is the command: it writes a line for each module with a vulnerability to out.
func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("vulncheck", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by main
	goMod := flags.String("mod", "go.mod", "the `file` whose modules are checked")
	db := flags.String("db", "", "the `URL` of a database, also file://, that must be in reach (default "+publicDB+")")
	record := flags.String("record", "", "write the database's entries for the modules to this `file`, and check nothing")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w; see vulncheck -h", err)
	case flags.NArg() > 0:
		return fmt.Errorf("%q is no flag; see vulncheck -h", flags.Arg(0))
	}

	modules, err := required(*goMod)
	if err != nil {
		return err
	}
	entries, err := fetch(cmp.Or(*db, publicDB), modules)
	if *record != "" {
		if err != nil {
			return err
		}
		return write(*record, entries)
	}
	if unreachable := new(url.Error); *db == "" && errors.As(err, &unreachable) {
		fmt.Fprintf(out, "only the recorded vulnerabilities are looked for: %v\n", err)
		err = json.Unmarshal(recorded, &entries)
	}
	if err != nil {
		return err
	}
	return check(modules, entries, out)
}

// required returns the modules that a go.mod file requires, indirectly too.
func required(goMod string) ([]module.Version, error) {
	data, err := os.ReadFile(goMod)
	if err != nil {
		return nil, err
	}
	file, err := modfile.Parse(goMod, data, nil)
	if err != nil {
		return nil, err
	}
	if len(file.Replace) > 0 {
		return nil, fmt.Errorf("%s replaces %s: which version is built, vulncheck cannot tell", goMod, file.Replace[0].Old.Path)
	}
	var modules []module.Version
	for _, require := range file.Require {
		modules = append(modules, require.Mod)
	}
	return modules, nil
}

var client = newClient()

func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.RegisterProtocol("file", http.NewFileTransport(http.Dir("/")))
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// get reads a JSON file of a database. The error is a *url.Error only where the
// database is out of reach.
func get(address string, into any) error {
	response, err := client.Get(address)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}

// fetch returns a database's entries for the modules, in the order of their
// IDs, and without what they say of other modules.
func fetch(db string, modules []module.Version) ([]entry, error) {
	isRequired := func(path string) bool {
		return slices.ContainsFunc(modules, func(m module.Version) bool { return m.Path == path })
	}
	var index []struct {
		Path  string
		Vulns []struct{ ID string }
	}
	if err := get(db+"/index/modules.json", &index); err != nil {
		return nil, err
	}
	var ids []string
	for _, m := range index {
		if isRequired(m.Path) {
			for _, vuln := range m.Vulns {
				ids = append(ids, vuln.ID)
			}
		}
	}
	slices.Sort(ids)
	var entries []entry
	for _, id := range slices.Compact(ids) {
		var e entry
		if err := get(db+"/ID/"+id+".json", &e); err != nil {
			return nil, err
		}
		e.Affected = slices.DeleteFunc(e.Affected, func(a affected) bool { return !isRequired(a.Package.Name) })
		if e.Withdrawn == "" {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// write writes entries as recorded.json has them: JSON with an entry in each line.
func write(file string, entries []entry) error {
	lines := make([]string, len(entries))
	for i, e := range entries {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		lines[i] = string(line)
	}
	return os.WriteFile(file, []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"), 0o644)
}

// check writes a line for each module that has a vulnerability, with the version
// that fixes all that are fixed. The error counts the modules with a fix.
func check(modules []module.Version, entries []entry, out io.Writer) error {
	outdated := 0
	for _, m := range modules {
		var fixable, unfixed []string
		newest := ""
		for _, e := range entries {
			vulnerable, fixed, err := e.status(m)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", e.ID, err)
			case vulnerable && fixed == "":
				unfixed = append(unfixed, e.ID)
			case vulnerable:
				fixable = append(fixable, e.ID)
				newest = later(newest, fixed)
			}
		}
		if len(fixable) > 0 {
			outdated++
			fmt.Fprintf(out, "%s: %s: fixed in %s\n", m, strings.Join(fixable, ", "), newest)
		}
		if len(unfixed) > 0 {
			fmt.Fprintf(out, "%s: %s: no fix published\n", m, strings.Join(unfixed, ", "))
		}
	}
	if outdated > 0 {
		return fmt.Errorf("%d of %d required modules have a vulnerability with a fix: raise them with go get", outdated, len(modules))
	}
	fmt.Fprintf(out, "%d required modules, %d known vulnerabilities: none that has a fix\n", len(modules), len(entries))
	return nil
}
