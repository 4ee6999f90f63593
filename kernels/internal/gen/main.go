// Gen reads package kernels' interface Launches. It writes the methods of Stream, the declarations
// of the C functions that they call, and stubs for a build without CUDA; for package device the
// operations on host memory and a recorder of launches. Run it with go generate.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

func main() {
	log.SetFlags(0)
	files, err := generate(".")
	if err != nil {
		log.Fatal(err)
	}
	for path, text := range files {
		if err := os.WriteFile(path, text, 0o666); err != nil {
			log.Fatal(err)
		}
	}
}

// generate returns the text of each file, from the folder of package kernels.
func generate(kernels string) (map[string][]byte, error) {
	fset := token.NewFileSet()
	launches, err := parser.ParseFile(fset, filepath.Join(kernels, "launches.go"), nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	raw, err := parser.ParseFile(fset, filepath.Join(kernels, "raw_cuda.go"), nil, 0)
	if err != nil {
		return nil, err
	}
	var data struct {
		Ops   []*op
		Stubs []string
	}
	methods := launches.Scope.Lookup("Launches").Decl.(*ast.TypeSpec).Type.(*ast.InterfaceType).Methods
	for _, m := range methods.List {
		o, err := newOp(m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", fset.Position(m.Pos()), err)
		}
		data.Ops = append(data.Ops, o)
	}
	for _, d := range raw.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			if s := stub(f); s != "" {
				data.Stubs = append(data.Stubs, s)
			}
		}
	}
	files := make(map[string][]byte)
	for name, text := range templates {
		var b bytes.Buffer
		if err := template.Must(template.New(name).Parse(text)).Execute(&b, data); err != nil {
			return nil, err
		}
		out := b.Bytes()
		if strings.HasSuffix(name, ".go") {
			if out, err = format.Source(out); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		files[filepath.Join(kernels, name)] = out
	}
	return files, nil
}

// An op is a method of Launches.
type op struct {
	Name, C string // Softmax, kernels_softmax
	Precise bool   // it works on values, and takes a precision
	Params  []param
	As      string // an expression of its name in profiles, or "" if it is described by hand
	Host    bool   // generated on host memory
	Dims    string // of what it reads first: "rows, cols"
	Arrays  []array
}

type param struct{ Name, Type string }

// An array is one that an op writes or reads.
type array struct {
	Name, Elem, Len string
	Bytes           string // an expression: those moved for each element that Dims counts
	Wrote           bool   // the op writes it
}

// newOp reads a method and its comments.
func newOp(m *ast.Field) (*op, error) {
	o := &op{Name: m.Names[0].Name}
	o.C = "kernels_" + snake(o.Name)
	for _, f := range m.Type.(*ast.FuncType).Params.List {
		for _, n := range f.Names {
			o.Params = append(o.Params, param{n.Name, typeName(f.Type)})
		}
		o.Precise = o.Precise || strings.HasSuffix(typeName(f.Type), "GEMM") || typeName(f.Type) == "Classifier"
	}
	if m.Doc == nil {
		return o, nil
	}
	o.Host = true
	for _, c := range m.Doc.List {
		if rest, ok := strings.CutPrefix(c.Text, "//launch:as "); ok {
			if err := o.as(rest); err != nil {
				return nil, err
			}
		}
		if c.Text == "//launch:host" {
			o.Host = false
		}
	}
	hasValues := slices.ContainsFunc(o.Arrays, func(a array) bool { return a.Elem == "value" })
	o.Precise = o.Precise || hasValues
	o.Host = o.Host && o.As != "" && !hasValues
	return o, nil
}

// sizes are the bytes of an element, as expressions in a method of recorder.
var sizes = map[string]string{"float32": "4", "int32": "4", "uint8": "1", "value": "r.Values().Size()"}

var (
	asPattern    = regexp.MustCompile(`^([^:]+): (.+) (\+?=) (.+)$`)
	arrayPattern = regexp.MustCompile(`(\w+)(?: (\w+))?\[((?:[^\[\]])+)\]`)
)

// as reads "name: written[n], ... = read[n], ...". With += what is written is read, too.
func (o *op) as(text string) error {
	m := asPattern.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("%q is not a name and arrays", text)
	}
	o.As = fmt.Sprintf("%q", m[1])
	first := arrayPattern.FindStringSubmatch(m[4])
	if o.Dims = strings.ReplaceAll(first[3], ",", ", "); !strings.Contains(o.Dims, ",") {
		o.Dims += ", 1"
	}
	for i, part := range []string{m[2], m[4]} {
		for _, a := range arrayPattern.FindAllStringSubmatch(part, -1) {
			x := array{Name: a[1], Elem: cmp.Or(a[2], "float32"), Len: strings.ReplaceAll(a[3], ",", "*"), Bytes: "0", Wrote: i == 0}
			if sameDims(a[3], first[3]) {
				x.Bytes = sizes[x.Elem]
				if x.Wrote && m[3] == "+=" {
					x.Bytes = "2*" + x.Bytes
				}
			}
			o.Arrays = append(o.Arrays, x)
		}
	}
	return nil
}

// sameDims compares rows,cols and cols,rows, too.
func sameDims(a, b string) bool {
	x, y, _ := strings.Cut(a, ",")
	return a == b || y+","+x == b
}

func typeName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.Ident:
		return t.Name
	case *ast.ArrayType:
		return "[]" + typeName(t.Elt)
	}
	return ""
}

// snake is name as a function of C has it: kernels_dgrad_wgrad of DgradWgrad.
func snake(name string) string {
	apart := regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`).ReplaceAllString(name, "${1}${3}_${2}${4}")
	return strings.ToLower(apart)
}

// each joins what f makes of each parameter.
func (o *op) each(f func(p param) string) string {
	var all []string
	for _, p := range o.Params {
		if s := f(p); s != "" {
			all = append(all, s)
		}
	}
	return strings.Join(all, ", ")
}

// GoParams is the parameters, with types of package kernels behind a prefix.
func (o *op) GoParams(prefix string) string {
	return o.each(func(p param) string {
		t := strings.TrimPrefix(p.Type, "[]")
		if token.IsExported(t) {
			return p.Name + " " + p.Type[:len(p.Type)-len(t)] + prefix + t
		}
		return p.Name + " " + p.Type
	})
}

// Args is the names of the parameters, and Scalars those of parameters that are not arrays, each
// after a comma.
func (o *op) Args() string { return o.each(func(p param) string { return p.Name }) }

func (o *op) Scalars() (s string) {
	for _, p := range o.Params {
		if p.Type != "uintptr" {
			s += ", " + p.Name
		}
	}
	return s
}

// ctypes are the types of C: a declaration's, and how Go makes one.
var ctypes = map[string]struct{ c, convert string }{
	"uintptr":    {"uintptr_t", "C.uintptr_t(%s)"},
	"int":        {"int64_t", "C.int64_t(%s)"},
	"float32":    {"float", "C.float(%s)"},
	"GEMM":       {"kernels_gemm_args", "%s.c()"},
	"[]GEMM":     {"kernels_group", "cGroup(%s)"},
	"Classifier": {"kernels_classifier_args", "%s.c()"},
}

// CArgs is the arguments of the call of C, and CParams the parameters of its declaration.
func (o *op) CArgs() string {
	return o.each(func(p param) string { return fmt.Sprintf(ctypes[p.Type].convert, p.Name) })
}

func (o *op) CParams() string {
	return o.each(func(p param) string { return ctypes[p.Type].c + " " + p.Name })
}

// RefArgs is the arguments of the function of package ref.
func (o *op) RefArgs() string {
	return o.each(func(p param) string {
		for _, a := range o.Arrays {
			if a.Name == p.Name {
				return fmt.Sprintf("sliceAt[%s](%s, %s)", a.Elem, a.Name, a.Len)
			}
		}
		return p.Name
	})
}

// stub is f for a build without CUDA, unless f is about C.
func stub(f *ast.FuncDecl) string {
	var b bytes.Buffer
	signature := *f
	signature.Body, signature.Doc = nil, nil
	if err := format.Node(&b, token.NewFileSet(), &signature); err != nil || strings.Contains(b.String(), "C.") {
		return ""
	}
	if f.Type.Results == nil {
		return b.String() + " {}"
	}
	var zeros []string
	for _, r := range f.Type.Results.List {
		switch typeName(r.Type) {
		case "error":
			zeros = append(zeros, "ErrNoCUDA")
		case "bool":
			zeros = append(zeros, "false")
		case "string":
			zeros = append(zeros, `""`)
		case "Info", "IPCHandle":
			zeros = append(zeros, typeName(r.Type)+"{}")
		default:
			zeros = append(zeros, "0")
		}
	}
	return b.String() + " { return " + strings.Join(zeros, ", ") + " }"
}
