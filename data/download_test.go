package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mlpool/internal/must"
)

// served is the content of the files that the tests download.
var served = map[string]string{"a.gz": strings.Repeat("abc", 50000), "b.gz": "b"}

// servedFiles describes served, sorted by name.
func servedFiles() []file {
	var files []file
	for name, content := range served {
		sum := sha256.Sum256([]byte(content))
		files = append(files, file{name, int64(len(content)), hex.EncodeToString(sum[:])})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files
}

// mirror starts a server on loopback and returns its URL.
func mirror(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/"
}

func serve(w http.ResponseWriter, r *http.Request) { w.Write([]byte(content(r))) }

// stall is how long a mirror may be silent in the tests.
const stall = 30 * time.Second

// bad are mirrors that fail, and the error of each; %s is the URL.
var bad = map[string]struct {
	serve http.HandlerFunc // nil: nobody listens
	want  string
}{
	"down":        {nil, "Get %q: connection refused"},
	"gone":        {http.NotFound, "%s: 404 Not Found"},
	"broken":      {status(http.StatusInternalServerError), "%s: 500 Internal Server Error"},
	"in-parts":    {status(http.StatusPartialContent), "%s: 206 Partial Content"},
	"altered":     {func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("x" + content(r)[1:])) }, "%s: SHA-256 is not that of MNIST"},
	"long":        {func(w http.ResponseWriter, r *http.Request) { serve(w, r); w.Write([]byte("more")) }, "%s: SHA-256 is not that of MNIST"},
	"truncated":   {func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("ab")) }, "%s: truncated: 2 of 150000 bytes"},
	"empty":       {func(http.ResponseWriter, *http.Request) {}, "%s: truncated: 0 of 150000 bytes"},
	"hangs-up":    {begin(func(*http.Request) { panic(http.ErrAbortHandler) }), "%s: after 2 of 150000 bytes: "},
	"stalls":      {begin(func(r *http.Request) { <-r.Context().Done() }), "%s: after 2 of 150000 bytes: no byte came for too long"},
	"silent":      {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "%s: no byte came for too long"},
	"no hostname": {serve, "invalid character"},
}

// content returns the content of the requested file.
func content(r *http.Request) string { return served[strings.TrimPrefix(r.URL.Path, "/")] }

// status serves the right content with a wrong status.
func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		serve(w, r)
	}
}

// begin serves two bytes of the content, and then calls then.
func begin(then func(*http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content(r))))
		w.Write([]byte("ab"))
		w.(http.Flusher).Flush()
		then(r)
	}
}

// downloaded downloads from hosts of a web, in the time of a synctest bubble, and checks that
// the folder then has the wanted files.
func downloaded(t *testing.T, w *web, want map[string]string, hosts ...string) (err error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "made", "on the way")
	var mirrors []string
	for _, h := range hosts {
		mirrors = append(mirrors, "http://"+h+"/")
	}
	synctest.Test(t, func(t *testing.T) {
		err = downloader{w.client(), servedFiles(), mirrors, nil, stall, time.Hour, nil}.download(t.Context(), dir)
	})
	checkFiles(t, dir, want)
	return err
}

func TestDownload(t *testing.T) {
	var all []string
	for name := range bad {
		all = append(all, name)
	}
	slices.Sort(all)
	w := &web{hosts: map[string]http.HandlerFunc{"good": serve, "unused": func(http.ResponseWriter, *http.Request) {
		t.Error("another mirror is asked once the files have come")
	}}}
	for name, b := range bad {
		w.hosts[name] = b.serve
	}
	for _, name := range all {
		t.Run(name, func(t *testing.T) {
			want := bad[name].want
			if strings.Contains(want, "%") {
				want = fmt.Sprintf(want, "http://"+name+"/a.gz")
			}
			if err := downloaded(t, w, nil, name); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("alone: %v, want %s", err, want)
			}
			if err := downloaded(t, w, served, name, "good", "unused"); err != nil {
				t.Errorf("before a good one: %v", err)
			}
		})
	}
	if err := downloaded(t, w, served, append(all, "good", "unused")...); err != nil {
		t.Errorf("all before a good one: %v", err)
	}
	err := downloaded(t, w, nil, "gone", "broken") // the error names both
	if text := fmt.Sprint(err); !strings.Contains(text, "http://gone/a.gz: 404") || !strings.Contains(text, "; http://broken/a.gz: 500") {
		t.Error(err)
	}
}

// TestDownloadGood downloads from mirrors that are odd, but serve the files.
func TestDownloadGood(t *testing.T) {
	w := &web{hosts: map[string]http.HandlerFunc{
		"slow": func(w http.ResponseWriter, r *http.Request) { // but never silent for as long as stall
			for chunk := range slices.Chunk([]byte(content(r)), 10000) {
				time.Sleep(stall - time.Second)
				w.Write(chunk)
				w.(http.Flusher).Flush()
			}
		},
		"calls-it-packed": func(w http.ResponseWriter, r *http.Request) { // a .gz file must not be unpacked
			w.Header().Set("Content-Encoding", "gzip")
			serve(w, r)
		},
	}}
	for name := range w.hosts {
		if err := downloaded(t, w, served, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// checkFiles checks that dir has these files and no others, such as temporary ones.
func checkFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.OK(t, err)
	for _, e := range entries {
		got, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Error(err)
		} else if content, ok := want[e.Name()]; !ok || content != string(got) {
			t.Errorf("%s should not be there, or not so", e.Name())
		}
	}
	if len(entries) != len(want) {
		t.Errorf("%d files, want %d", len(entries), len(want))
	}
}

func TestDownloadCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	url := mirror(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 1000))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	unused := mirror(t, func(w http.ResponseWriter, r *http.Request) { t.Error("asked another mirror after the cancellation") })
	progress := func(file string, done, total int64) {
		if done > 0 {
			cancel()
		}
	}
	dir := t.TempDir()
	err := downloader{http.DefaultClient, servedFiles(), []string{url, unused}, progress, time.Minute, time.Minute, nil}.download(ctx, dir)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), unused) {
		t.Errorf("got %v", err)
	}
	checkFiles(t, dir, nil)
}

func TestDownloadProgress(t *testing.T) {
	type report struct {
		file        string
		done, total int64
	}
	var reports []report
	progress := func(file string, done, total int64) { reports = append(reports, report{file, done, total}) }
	d := downloader{http.DefaultClient, servedFiles(), []string{mirror(t, serve)}, progress, time.Minute, time.Minute, nil}
	must.OK(t, d.download(t.Context(), t.TempDir()))
	last := report{}
	for _, r := range reports {
		switch {
		case r.file != last.file && (last.done != last.total || r.done != 0):
			t.Errorf("%+v starts after %+v", r, last)
		case r.file == last.file && r.done < last.done:
			t.Errorf("%+v after %+v", r, last)
		}
		last = r
	}
	if want := (report{"b.gz", 1, 1}); last != want {
		t.Errorf("the last report is %+v, want %+v", last, want)
	}
}

// TestDownloadWaiting names a mirror that answers late once, before its answer.
func TestDownloadWaiting(t *testing.T) {
	said := make(chan struct{})
	first := true
	url := mirror(t, func(w http.ResponseWriter, r *http.Request) {
		if first { // one request at a time
			first = false
			<-said
		}
		serve(w, r)
	})
	var events []string
	progress := func(file string, done, total int64) {
		if done == total {
			events = append(events, file)
		}
	}
	d := downloader{http.DefaultClient, servedFiles(), []string{url}, progress, time.Minute, time.Millisecond, nil}
	d.waiting = func(host string) {
		events = append(events, host)
		d.patience = time.Minute
		close(said)
	}
	must.OK(t, d.fetch(t.Context(), url+"a.gz", t.TempDir(), d.files[0]))
	if want := []string{strings.Trim(url, "htp:/"), "a.gz"}; !slices.Equal(slices.Compact(events), want) {
		t.Errorf("got %q, want %q", events, want)
	}
}
