package compare

import (
	"bytes"
	"html"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/internal/report"
)

// pageOf returns the text of the page about runs.
func pageOf(t *testing.T, runs []Run) string {
	t.Helper()
	p, err := reportPage(runs)
	must.OK(t, err)
	var page bytes.Buffer
	must.OK(t, report.Write(&page, p))
	return html.UnescapeString(page.String())
}

// TestReportOfOne has one of each thing.
func TestReportOfOne(t *testing.T) {
	config := []byte("[model]\nfeat_dim = 8\nnum_layers = 1\n")
	facts := rundir.Facts{Name: "custom", Status: rundir.Done, Epochs: 1, Machine: rundir.Machine{CPU: "a CPU", Cores: 1}}
	p, err := reportPage([]Run{{Facts: facts, Config: config}})
	must.OK(t, err)
	values := map[string]string{}
	for _, f := range p.Runs[0].Facts {
		values[f.Name] = f.Value
	}
	for name, want := range map[string]string{"model": "1 hidden layer of 8", "CPU": "a CPU, 1 thread", "ended": "done after 1 epoch"} {
		if values[name] != want {
			t.Errorf("%s: %q, want %q", name, values[name], want)
		}
	}
}

// TestReportRanksNothing shows runs that are not comparable: other work, other machines, or not in
// turns. It says first that a run diverged.
func TestReportRanksNothing(t *testing.T) {
	config := []byte(traintest.ConfigText(64, true))
	run := func(config []byte, device string, diverged int) Run {
		f := Run{Facts: rundir.Facts{Name: "custom", Machine: rundir.Machine{CPU: "a CPU"}}, Config: config}
		if device != "" {
			f.Facts.GPU = &rundir.GPU{Name: device}
		}
		for i := range 8 {
			f.Records = append(f.Records, rundir.Record{Epoch: i + 1, Warmup: i == 0, TrainMS: 40, PeakReserved: 1 << 20})
		}
		if diverged > 0 {
			f.Records = f.Records[:diverged]
			f.Records[diverged-1].Diverged = 5
		}
		return f
	}
	data := []byte(strings.Replace(traintest.ConfigText(64, true), `"mnist"`, `"fashion"`, 1))
	model := []byte(strings.Replace(traintest.ConfigText(64, true), "num_layers = 4", "num_layers = 2", 1))
	for _, test := range []struct {
		name string
		runs []Run
		lead string
	}{
		{"batches", []Run{run(config, "", 0), run([]byte(traintest.ConfigText(128, true)), "", 0)}, "These runs are not comparable: they differ in train.bsz (64, 128)."},
		{"data", []Run{run(config, "", 0), run(data, "", 0)}, "These runs are not comparable: they differ in data.dataset (mnist, fashion)."},
		{"models", []Run{run(config, "", 0), run(config, "", 0), run(model, "", 0)}, "These runs are not comparable: they differ in model.num_layers (4, 2)."},
		{"devices", []Run{run(config, "H100", 0), run(config, "H200", 0)}, "These runs are not comparable: they differ in the device (H100, H200)."},
		{"other settings", []Run{run(config, "", 0), run([]byte(traintest.ConfigText(64, false)), "", 0)}, "These runs did not take turns"},
		{"diverged", []Run{run(config, "", 4)}, "custom diverged in epoch 4"},
		{"two diverged", []Run{run(config, "", 1), run(config, "", 2)}, "custom 1 diverged in epoch 1"},
	} {
		page := pageOf(t, test.runs)
		_, lead, _ := strings.Cut(page, "<h1>")
		if lead, _, _ = strings.Cut(lead, "</h1>"); !strings.HasPrefix(lead, test.lead) {
			t.Errorf("%s: the page begins with %q, want %q", test.name, lead, test.lead)
		}
		if strings.Contains(page, "train.fuse") != (test.name == "other settings") {
			t.Errorf("%s: the page does not have the keys that differ, or others", test.name)
		}
		if strings.Contains(page, "the fastest") || strings.Contains(page, "longer.") {
			t.Errorf("%s: the page ranks the runs", test.name)
		}
	}
}
