package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
)

func TestStatus(t *testing.T) {
	span := func(events ...event) []versions { return []versions{{events}} }
	introduced := func(v string) event { return event{Introduced: v} }
	fixed := func(v string) event { return event{Fixed: v} }
	twice := span(introduced("0"), fixed("1.2.0"), introduced("1.5.0-0"), fixed("1.5.3"))

	for name, c := range map[string]struct {
		ranges     []versions
		version    string
		vulnerable bool
		fixed      string
		err        string
	}{
		"before the fix":             {span(introduced("0"), fixed("1.33.0")), "v1.25.0", true, "v1.33.0", ""},
		"compared as numbers":        {span(introduced("0"), fixed("1.10.0")), "v1.9.0", true, "v1.10.0", ""},
		"at the fix":                 {span(introduced("0"), fixed("1.33.0")), "v1.33.0", false, "", ""},
		"after the fix":              {span(introduced("0"), fixed("1.33.0")), "v1.36.12", false, "", ""},
		"a prerelease of the fix":    {span(introduced("0"), fixed("1.33.0")), "v1.33.0-rc.1", true, "v1.33.0", ""},
		"0 is before a pseudo one":   {span(introduced("0"), fixed("0.1.0")), "v0.0.0-20200804184101-5ec99f83aff1", true, "v0.1.0", ""},
		"a pseudo-version as fix":    {span(introduced("0"), fixed("0.0.0-20220412211240-33da011f77ad")), "v0.0.0-20210412211240-33da011f77ad", true, "v0.0.0-20220412211240-33da011f77ad", ""},
		"incompatible":               {span(introduced("0"), fixed("2.0.8+incompatible")), "v2.0.0+incompatible", true, "v2.0.8+incompatible", ""},
		"before its introduction":    {span(introduced("1.29.0"), fixed("1.29.1")), "v1.25.0", false, "", ""},
		"at its introduction":        {span(introduced("1.29.0"), fixed("1.29.1")), "v1.29.0", true, "v1.29.1", ""},
		"first of two spans":         {twice, "v1.1.0", true, "v1.2.0", ""},
		"between two spans":          {twice, "v1.3.0", false, "", ""},
		"second of two spans":        {twice, "v1.5.0", true, "v1.5.3", ""},
		"in any order":               {span(fixed("1.5.3"), introduced("1.5.0"), fixed("1.2.0"), introduced("0")), "v1.3.0", false, "", ""},
		"two ranges, later fix":      {append(span(introduced("0"), fixed("1.2.0")), span(introduced("0"), fixed("1.4.0"))...), "v1.0.0", true, "v1.4.0", ""},
		"two ranges, one not fixed":  {append(span(introduced("0"), fixed("1.2.0")), span(introduced("0"))...), "v1.0.0", true, "", ""},
		"never fixed":                {span(introduced("0")), "v1.0.0", true, "", ""},
		"all versions":               {nil, "v1.0.0", true, "", ""},
		"no version":                 {span(introduced("0"), fixed("next")), "v1.0.0", false, "", "no version"},
		"an event of an unread kind": {span(introduced("0"), event{}), "v1.0.0", false, "", "no version"},
	} {
		t.Run(name, func(t *testing.T) {
			a := affected{Ranges: c.ranges}
			a.Package.Name = "example.com/m"
			other := affected{}
			other.Package.Name = "example.com/other"
			e := entry{Affected: []affected{other, a}}

			vulnerable, fixed, err := e.status(module.Version{Path: "example.com/m", Version: c.version})
			if vulnerable != c.vulnerable || fixed != c.fixed {
				t.Errorf("vulnerable %t, fixed in %q; want %t, %q", vulnerable, fixed, c.vulnerable, c.fixed)
			}
			wantError(t, err, c.err)
		})
	}
}

// wantError fails the test unless err has a text in it; with "", unless it is nil.
func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
		t.Errorf("error %v, want %q in it", err, text)
	}
}

// A small database: of module a, two vulnerabilities with a fix, one without and
// one withdrawn; of module b, one with a fix that a has too; module c is broken.
var database = map[string]string{
	"index/modules.json": `[
		{"path": "example.com/a", "vulns": [{"id": "GO-4"}, {"id": "GO-3"}, {"id": "GO-2"}, {"id": "GO-1"}]},
		{"path": "example.com/b", "vulns": [{"id": "GO-2"}]},
		{"path": "example.com/c", "vulns": [{"id": "GO-5"}]},
		{"path": "example.com/d", "vulns": [{"id": "GO-6"}]}]`,
	"ID/GO-1.json": `{"id": "GO-1", "affected": [{"package": {"name": "example.com/a"},
		"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "1.2.0"}]}]}]}`,
	"ID/GO-2.json": `{"id": "GO-2", "affected": [
		{"package": {"name": "example.com/a"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "1.10.0"}]}]},
		{"package": {"name": "example.com/b"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "0.5.0"}]}]}]}`,
	"ID/GO-3.json": `{"id": "GO-3", "affected": [{"package": {"name": "example.com/a"},
		"ranges": [{"type": "SEMVER", "events": [{"introduced": "1.1.0"}]}]}]}`,
	"ID/GO-4.json": `{"id": "GO-4", "withdrawn": "2026-01-02T03:04:05Z", "affected": [{"package": {"name": "example.com/a"}}]}`,
	"ID/GO-5.json": `{"id": "GO-5", "affected": `,
}

// files writes files below a new folder, and returns it.
func files(t *testing.T, contents map[string]string) string {
	dir := t.TempDir()
	for name, text := range contents {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRun(t *testing.T) {
	db := "file://" + files(t, database)
	for name, c := range map[string]struct {
		goMod string
		args  []string
		want  []string // the lines that are written
		err   string
	}{
		"fixes": {
			goMod: "require (\n example.com/a v1.0.0\n example.com/b v0.4.0 // indirect\n)",
			want:  []string{"example.com/a@v1.0.0: GO-1, GO-2: fixed in v1.10.0", "example.com/b@v0.4.0: GO-2: fixed in v0.5.0"},
			err:   "2 of 2 required modules",
		},
		"one fix, one without": {
			goMod: "require example.com/a v1.9.0",
			want:  []string{"example.com/a@v1.9.0: GO-2: fixed in v1.10.0", "example.com/a@v1.9.0: GO-3: no fix published"},
			err:   "1 of 1 required modules",
		},
		"none with a fix": {
			goMod: "require example.com/a v1.10.0",
			want:  []string{"example.com/a@v1.10.0: GO-3: no fix published", "1 required modules, 3 known vulnerabilities: none that has a fix"},
		},
		"none": {
			goMod: "require example.com/unknown v0.1.0",
			want:  []string{"1 required modules, 0 known vulnerabilities: none that has a fix"},
		},
		"broken entry":      {goMod: "require example.com/c v1.0.0", err: "GO-5.json: unexpected EOF"},
		"missing entry":     {goMod: "require example.com/d v1.0.0", err: "GO-6.json: 404 Not Found"},
		"replaced module":   {goMod: "require example.com/a v1.0.0\nreplace example.com/a => ../a", err: "replaces example.com/a"},
		"broken go.mod":     {goMod: "require example.com/a", err: "go.mod:2"},
		"missing go.mod":    {args: []string{"-mod", "missing"}, err: "no such file"},
		"missing database":  {args: []string{"-db", "file:///missing"}, err: "404 Not Found"},
		"unsupported URL":   {args: []string{"-db", "gopher://missing"}, err: "unsupported protocol"},
		"unknown flag":      {args: []string{"-quick"}, err: "see vulncheck -h"},
		"an argument":       {args: []string{"./..."}, err: `"./..." is no flag`},
		"record to nowhere": {args: []string{"-record", filepath.Join("missing", "file")}, err: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			goMod := filepath.Join(files(t, map[string]string{"go.mod": "module example.com/main\n" + c.goMod + "\n"}), "go.mod")
			var out bytes.Buffer
			wantError(t, run(append([]string{"-mod", goMod, "-db", db}, c.args...), &out), c.err)
			if got, want := strings.TrimSpace(out.String()), strings.Join(c.want, "\n"); got != want {
				t.Errorf("it wrote\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	dir := files(t, map[string]string{"go.mod": "module example.com/main\nrequire example.com/b v0.4.0\n"})
	file := filepath.Join(dir, "recorded.json")
	var out bytes.Buffer
	if err := run([]string{"-mod", filepath.Join(dir, "go.mod"), "-db", "file://" + files(t, database), "-record", file}, &out); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[
{"id":"GO-2","affected":[{"package":{"name":"example.com/b"},"ranges":[{"events":[{"introduced":"0"},{"fixed":"0.5.0"}]}]}]}
]
`
	if string(got) != want {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
}

// publish makes the server's the public database.
func publish(t *testing.T, server *httptest.Server) {
	before := publicDB
	publicDB = server.URL
	t.Cleanup(func() { publicDB = before })
}

func TestOutOfReach(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close() // from now on it refuses connections
	publish(t, server)
	old := filepath.Join(files(t, map[string]string{"go.mod": "module example.com/main\nrequire google.golang.org/protobuf v1.25.0\n"}), "go.mod")
	for name, c := range map[string]struct {
		args []string
		want string // in what is written
		err  string
	}{
		"this project":     {[]string{"-mod", "../../go.mod"}, "none that has a fix", ""},
		"an old module":    {[]string{"-mod", old}, "google.golang.org/protobuf@v1.25.0: GO-2024-2611: fixed in v1.33.0", "1 of 1 required modules"},
		"a named database": {[]string{"-mod", old, "-db", publicDB}, "", "connection refused"},
		"nothing recorded": {[]string{"-mod", old, "-record", filepath.Join(t.TempDir(), "recorded.json")}, "", "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			wantError(t, run(c.args, &out), c.err)
			if !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "only the recorded") != (c.want != "") {
				t.Errorf("it wrote\n%s\nwant %q in it", out.String(), c.want)
			}
		})
	}
}

// A database that answers with an error is in reach: the record does not hide it.
func TestDatabaseThatFails(t *testing.T) {
	server := httptest.NewServer(nil) // 404 for all
	defer server.Close()
	publish(t, server)
	var out bytes.Buffer
	wantError(t, run([]string{"-mod", "../../go.mod"}, &out), "404 Not Found")
	if out.Len() > 0 {
		t.Errorf("it wrote %q", out.String())
	}
}
