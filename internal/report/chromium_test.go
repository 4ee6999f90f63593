package report

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"mlpool/internal/must"
)

// A browser is a tab and the errors in it.
type browser struct {
	*testing.T
	ctx context.Context
	mu  sync.Mutex
	bad []string // errors on the console, and requests
}

// openBrowser starts Chromium. Without it, the test is skipped, or fails under
// REQUIRE_BROWSER=1.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("REQUIRE_BROWSER") == "1" {
			t.Fatal("no chromium and no google-chrome in PATH")
		}
		t.Skip("no browser")
	}
	// The browser writes to the folder until its processes end.
	profile, err := os.MkdirTemp(t.TempDir(), "profile")
	must.OK(t, err)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.UserDataDir(profile), chromedp.Flag("disable-background-networking", true))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx}
	note := func(format string, args ...any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.bad = append(b.bad, fmt.Sprintf(format, args...))
	}
	b.do() // starts the browser
	err = chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			note("exception: %s", e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			note("console: %s", e.Type)
		case *cdplog.EventEntryAdded: // such as violations of the page's policy
			note("log: %s", e.Entry.Text)
		case *network.EventRequestWillBeSent:
			if !strings.HasPrefix(e.Request.URL, "file:") && !strings.HasPrefix(e.Request.URL, "data:") {
				note("request: %s", e.Request.URL)
			}
		}
	})
	must.OK(t, err)
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	must.OK(b, chromedp.Do(b.ctx, actions...))
}

// run runs an action with a result.
func run[T any](b *browser, action chromedp.Action[T]) T {
	b.Helper()
	v, err := chromedp.Run(b.ctx, action)
	must.OK(b, err)
	return v
}

// number and text evaluate JavaScript.
func (b *browser) number(script string) float64 {
	b.Helper()
	return run(b, chromedp.Evaluate[float64](script))
}

func (b *browser) text(script string) string {
	b.Helper()
	return run(b, chromedp.Evaluate[string](script))
}

// click clicks the middle of the element of an expression.
func (b *browser) click(element string) {
	b.Helper()
	at := run(b, chromedp.Evaluate[[]float64](`(e => {
		e.scrollIntoView({block: "center"});
		const r = e.getBoundingClientRect();
		return [r.left + r.width / 2, r.top + r.height / 2];
	})(`+element+`)`))
	b.do(chromedp.MouseClickXY(at[0], at[1]))
}

// scheme emulates a light or a dark screen.
func (b *browser) scheme(name string) {
	b.Helper()
	b.emulate(emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

// media emulates print, or with "" the real medium.
func (b *browser) media(name string) {
	b.Helper()
	b.emulate(emulation.SetEmulatedMediaParams{Media: name})
}

func (b *browser) emulate(params emulation.SetEmulatedMediaParams) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, params); err != nil {
		b.Fatal(err)
	}
}

// load opens a page and wants neither errors nor requests.
func (b *browser) load(p Page) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "report.html")
	f, err := os.Create(path)
	must.OK(b, err)
	must.OK(b, Write(f, p))
	must.OK(b, f.Close())
	b.do(chromedp.Navigate("file://"+path), chromedp.WaitReady("main"))
	b.clean()
}

func (b *browser) clean() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.bad {
		b.Error(text)
	}
	b.bad = nil
}
