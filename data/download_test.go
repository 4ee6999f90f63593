package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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

func serve(w http.ResponseWriter, r *http.Request) {
	w.Write([]byte(served[strings.TrimPrefix(r.URL.Path, "/")]))
}

func TestDownload(t *testing.T) {
	good := mirror(t, serve)
	gone := mirror(t, http.NotFound)
	altered := mirror(t, func(w http.ResponseWriter, r *http.Request) {
		content := []byte(served[strings.TrimPrefix(r.URL.Path, "/")])
		content[0] ^= 1
		w.Write(content)
	})
	long := mirror(t, func(w http.ResponseWriter, r *http.Request) { serve(w, r); w.Write([]byte("more")) })
	short := mirror(t, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("ab")) })
	dropped := mirror(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "150000")
		w.Write(make([]byte, 1000))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	stalled := mirror(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("ab"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	down := "http://127.0.0.1:0/" // nobody listens there

	for _, tt := range []struct {
		name    string
		mirrors []string
		want    []string // parts of the error; none: success
	}{
		{"at once", []string{good}, nil},
		{"first mirror down", []string{down, good}, nil},
		{"every other mirror bad", []string{gone, altered, long, short, dropped, stalled, good}, nil},
		{"not found", []string{gone}, []string{gone + "a.gz: 404 Not Found"}},
		{"altered", []string{altered}, []string{altered + "a.gz: SHA-256 is not that of MNIST"}},
		{"too long", []string{long}, []string{long + "a.gz: SHA-256 is not that of MNIST"}},
		{"truncated", []string{short}, []string{short + "a.gz: truncated: 2 of 150000 bytes"}},
		{"dropped", []string{dropped}, []string{dropped + "a.gz: after 1000 of 150000 bytes: unexpected EOF"}},
		{"stalled", []string{stalled}, []string{stalled + "a.gz: after 2 of 150000 bytes: no byte came for too long"}},
		{"all mirrors bad", []string{down, gone, altered}, []string{down + "a.gz", gone + "a.gz", altered + "a.gz"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "made", "on the way")
			d := downloader{servedFiles(), tt.mirrors, nil, 100 * time.Millisecond, time.Minute, nil}
			err := d.download(t.Context(), dir)
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				checkFiles(t, dir, served)
				return
			}
			checkFiles(t, dir, nil)
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v, want %s in it", err, part)
				}
			}
		})
	}
}

// checkFiles checks that dir holds these files and no other, such as a
// temporary one.
func checkFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
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

// Only what is missing or altered is fetched.
func TestDownloadTheRest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before map[string]string
		asked  []string
	}{
		{"nothing there", nil, []string{"/a.gz", "/b.gz"}},
		{"one there", map[string]string{"a.gz": served["a.gz"]}, []string{"/b.gz"}},
		{"one altered", map[string]string{"a.gz": served["a.gz"], "b.gz": "c"}, []string{"/b.gz"}},
		{"all there", served, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range tt.before {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var asked []string
			url := mirror(t, func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.Path) // one request at a time, each answered before the next
				serve(w, r)
			})
			if err := (downloader{servedFiles(), []string{url}, nil, time.Minute, time.Minute, nil}).download(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
			checkFiles(t, dir, served)
			if !slices.Equal(asked, tt.asked) {
				t.Errorf("asked for %q, want %q", asked, tt.asked)
			}
		})
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
	unused := mirror(t, func(w http.ResponseWriter, r *http.Request) { t.Error("asked another mirror after the end") })
	progress := func(file string, done, total int64) {
		if done > 0 {
			cancel()
		}
	}
	dir := t.TempDir()
	err := downloader{servedFiles(), []string{url, unused}, progress, time.Minute, time.Minute, nil}.download(ctx, dir)
	if !errors.Is(err, context.Canceled) {
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
	d := downloader{servedFiles(), []string{mirror(t, serve)}, progress, time.Minute, time.Minute, nil}
	if err := d.download(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
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

// A mirror that answers late is named once, before its answer is.
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
	d := downloader{servedFiles(), []string{url}, progress, time.Minute, time.Millisecond, nil}
	d.waiting = func(host string) {
		events = append(events, host)
		d.patience = time.Minute
		close(said)
	}
	if err := d.fetch(t.Context(), url+"a.gz", t.TempDir(), d.files[0]); err != nil {
		t.Fatal(err)
	}
	if want := []string{strings.Trim(url, "htp:/"), "a.gz"}; !slices.Equal(slices.Compact(events), want) {
		t.Errorf("got %q, want %q", events, want)
	}
}
