package rundir

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// FuzzFacts takes any run.json: it is refused in one line, or written back as it was read.
func FuzzFacts(f *testing.F) {
	for _, text := range []string{
		`{"status":"done","seed":18446744073709551615,"start":"2026-11-22T10:15:00Z","end":"2026-11-22T10:16:00.5+05:30"}`,
		`{"status":"running","command":["train","\u2028\ud800"],"gpu":{"memory":1},"machine":{"os":"<&>"},"ranks":-1,"place":1}`,
		`{"status":"failed","gpu":null,"end":null,"error":"a\nb"}`,
		`{"status":"done","start":"10000-01-01T00:00:00Z"}`,
		`{"status":""}`, `{}`, `[]`, `null`, "",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		traintest.Write(t, filepath.Join(dir, FactsFile), text)
		run, err := Open(dir)
		if err != nil {
			checkOneLine(t, err)
			return
		}
		once := rewritten(t, run)
		run, err = Open(dir)
		must.OK(t, err)
		if again := rewritten(t, run); again != once {
			t.Errorf("%s is read as what is written as %s", once, again)
		}
	})
}

// rewritten returns run.json after reading and writing it.
func rewritten(t *testing.T, r Run) string {
	t.Helper()
	f := &Folder{Dir: r.Dir, Facts: r.Facts}
	must.OK(t, f.writeFacts())
	return string(must.Read(t, filepath.Join(r.Dir, FactsFile)))
}

// FuzzLogs takes any records and losses: they are refused in one line, or written back as they were
// read.
func FuzzLogs(f *testing.F) {
	f.Add(`{"epoch":1,"steps":2,"loss":0.5,"val_loss":null,"val_acc":0.75}`+"\n", "0.1\nNaN\n")
	f.Add(`{"epoch":1,"loss":-0}`+"\n"+`{"epoch":2,"interrupted":true,"train_ms":1e308,"allocs":-9223372036854775808}`+"\n"+`{"ep`, "+Inf\n-Inf\n-0\n1e-45\n0.2")
	f.Add("null\n[]\n", "1e39\n")
	f.Add("{\"allocator\":\"\\u2028\xff\"}\n{\"LOSS\":1,\"loss\":2}\n", "0x1p-2\n1_0\n\n")
	f.Add("\n", "1\r\n")
	f.Fuzz(func(t *testing.T, records, losses string) {
		if len(records)+len(losses) > 1024 {
			return
		}
		dir := t.TempDir()
		traintest.Write(t, filepath.Join(dir, RecordsFile), records)
		traintest.Write(t, filepath.Join(dir, LossesFile), losses)
		epochs, errRecords := Run{Dir: dir}.Records()
		steps, errLosses := Run{Dir: dir}.Losses()
		for _, err := range []error{errRecords, errLosses} {
			if err != nil {
				checkOneLine(t, err)
			}
		}
		once := relogged(t, dir, epochs, steps)
		epochs, errRecords = Run{Dir: dir}.Records()
		steps, errLosses = Run{Dir: dir}.Losses()
		must.OK(t, errors.Join(errRecords, errLosses))
		if again := relogged(t, dir, epochs, steps); again != once {
			t.Errorf("%s is read as what is written as %s", once, again)
		}
	})
}

// relogged returns logs after reading and writing them.
func relogged(t *testing.T, dir string, records []Record, losses []float32) string {
	t.Helper()
	f, err := Start(dir, Facts{}, nil)
	must.OK(t, err)
	for _, r := range records {
		err = errors.Join(err, f.Add(r, nil))
	}
	must.OK(t, errors.Join(err, f.Carry(nil, losses), f.Finish()))
	return string(must.Read(t, filepath.Join(dir, RecordsFile))) + string(must.Read(t, filepath.Join(dir, LossesFile)))
}

func checkOneLine(t *testing.T, err error) {
	t.Helper()
	if strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("error of several lines: %q", err)
	}
}
