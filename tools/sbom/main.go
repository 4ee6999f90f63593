// Command sbom writes what programs of this module are built from: sbom.spdx.json, and a folder licenses
// with the licence of each part.
//
//	go run ./tools/sbom -o DIR -version VERSION -created TIME -tags TAGS [-with NAME=FILE]... PACKAGE...
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// A part is something that is linked in.
type part struct {
	name, version, purl string
	licences            []string // files
}

var licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

func main() {
	log.SetFlags(0)
	log.SetPrefix("sbom: ")
	out := flag.String("o", ".", "write into folder `DIR`")
	version := flag.String("version", "", "the `VERSION` of the release")
	created := flag.String("created", "", "the `TIME` of the release, as in 2026-11-27T08:00:00Z")
	tags := flag.String("tags", "", "build `TAGS`")
	var parts []part
	flag.Func("with", "add a part that is no Go module, `NAME=FILE` with its licence; may be repeated", func(s string) error {
		name, file, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want NAME=FILE")
		}
		parts = append(parts, part{name: name, version: "NOASSERTION", licences: []string{file}})
		return nil
	})
	flag.Parse()
	modules, err := list(*tags, flag.Args())
	if err == nil {
		err = write(*out, *version, *created, slices.Concat(modules, parts))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// list returns the modules and the standard library that packages are built from.
func list(tags string, packages []string) ([]part, error) {
	args := append([]string{"list", "-deps", "-tags", tags, "-f", "{{with .Module}}{{if not .Main}}{{with or .Replace .}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}{{end}}", "--"}, packages...)
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	lines := append(strings.Split(string(text), "\n"), strings.Join([]string{"std", strings.TrimPrefix(runtime.Version(), "go"), strings.TrimSpace(string(root))}, "\t"))
	slices.Sort(lines)
	var parts []part
	for _, line := range slices.Compact(lines) {
		if line == "" {
			continue
		}
		f := strings.Split(line, "\t")
		p := part{name: f[0], version: f[1], purl: "pkg:golang/" + f[0] + "@" + f[1]}
		entries, err := os.ReadDir(f[2])
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if licence.MatchString(e.Name()) && e.Type().IsRegular() {
				p.licences = append(p.licences, filepath.Join(f[2], e.Name()))
			}
		}
		if p.licences == nil {
			return nil, fmt.Errorf("%s has no licence in %s", p.name, f[2])
		}
		parts = append(parts, p)
	}
	return parts, nil
}

type object = map[string]any

func write(dir, version, created string, parts []part) error {
	packages := []object{{"SPDXID": "SPDXRef-mlpool", "name": "mlpool", "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false, "licenseDeclared": "MIT", "licenseConcluded": "MIT", "copyrightText": "NOASSERTION"}}
	relations := []object{{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-mlpool"}}
	sum := sha256.New()
	for i, p := range parts {
		folder := filepath.Join("licenses", filepath.FromSlash(p.name))
		for _, file := range p.licences {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			to := filepath.Join(dir, folder, filepath.Base(file))
			if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644)); err != nil {
				return err
			}
		}
		id := fmt.Sprintf("SPDXRef-part-%d", i)
		about := object{"SPDXID": id, "name": p.name, "versionInfo": p.version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
			"licenseDeclared": "NOASSERTION", "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION", "licenseComments": "see " + filepath.ToSlash(folder)}
		if p.purl != "" {
			about["externalRefs"] = []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": p.purl}}
		}
		packages = append(packages, about)
		relations = append(relations, object{"spdxElementId": "SPDXRef-mlpool", "relationshipType": "STATIC_LINK", "relatedSpdxElement": id})
		io.WriteString(sum, p.name+" "+p.version+"\n")
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "mlpool-" + version,
		"documentNamespace": fmt.Sprintf("https://spdx.org/spdxdocs/mlpool-%s-%x", version, sum.Sum(nil)[:16]),
		"creationInfo":      object{"created": created, "creators": []string{"Tool: mlpool-sbom"}},
		"packages":          packages, "relationships": relations,
	}); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "sbom.spdx.json"), b.Bytes(), 0o644)
}
