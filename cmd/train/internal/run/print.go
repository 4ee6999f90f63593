package run

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/internal/text"
	"mlpool/kernels/device"
)

// printEpoch prints the line of an epoch. It leaves out what does not fit, from the end; the
// summary and the logs have it.
func (s *session) printEpoch(r rundir.Record) {
	parts := []string{
		fmt.Sprintf("epoch %d/%d", r.Epoch, s.bound), "loss " + compare.Nats(r.Loss),
		fmt.Sprintf("val %s, %.2f %%", compare.Nats(r.ValLoss), 100*r.ValAcc),
	}
	if r.Interrupted {
		end := "interrupted"
		if r.Diverged > 0 {
			end = "diverged, ended"
		}
		parts = []string{fmt.Sprintf("epoch %d %s after %s", r.Epoch, end, text.Count(r.Steps, "step")), "loss " + compare.Nats(r.Loss)}
	}
	if s.cfg.Train.TimeEpoch {
		parts = append(parts, terminal.Short(r.TrainMS, 1)+" ms")
		if s.ranks.Parallel() {
			parts = append(parts, fmt.Sprintf("all-reduce %s µs", terminal.Short(r.AllReduceUS, 1)), fmt.Sprintf("%.0f %% hidden", 100*compare.Hidden(r)))
		} else {
			parts = append(parts, fmt.Sprintf("alloc %s ms", terminal.Short(r.AllocatorMS, 2)), fmt.Sprintf("calls %d", r.DriverCalls))
		}
	}
	if len(s.runners) > 1 {
		width := 0
		for _, r := range s.runners {
			width = max(width, len(r.String()))
		}
		parts[0] = fmt.Sprintf("%-*s  %s", width, r.Allocator, parts[0])
	}
	line := parts[0]
	for _, part := range parts[1:] {
		if utf8.RuneCountInString(line)+2+utf8.RuneCountInString(part) > terminal.LineWidth {
			break
		}
		line += "  " + part
	}
	_ = s.bar.Print(s.stdout, line+"\n") // standard output remembers its error
}

// printSummary prints the results of the runs, and where their folder is.
func (s *session) printSummary(elapsed time.Duration) {
	if !slices.ContainsFunc(s.runners, func(r *runner) bool { return len(r.records) > 0 }) {
		return
	}
	s.results().Print(s.stdout, s.finished(), s.until)
	fmt.Fprintf(s.stdout, "%.1f s in all", elapsed.Seconds())
	if s.dir != "" {
		fmt.Fprintf(s.stdout, "; run in %s", s.dir)
	}
	fmt.Fprintln(s.stdout)
}

// printResume prints, for each run that ended early with a checkpoint, the command line that
// resumes it.
func (s *session) printResume() {
	for _, r := range s.runners {
		if epoch, _ := r.place(); r.folder == nil || !r.saved || r.diverged() || !r.unsaved && epoch >= s.cfg.Train.NumEpochs {
			continue
		}
		command := quoted(os.Args[0]) + " -resume " + quoted(r.folder.Dir)
		alone := r.Subject // as ALLOCATOR_TYPE names it
		alone.Copy = 0
		if name := alone.String(); name != backend.CustomPool {
			command = backend.AllocatorEnv + "=" + name + " " + command
		}
		fmt.Fprintf(s.stdout, "continue with: %s\n", command)
	}
}

// quoted returns a word as a POSIX shell reads it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+:,=@%", r)
	}
	if !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// printProfile prints where the time of a step goes. Shares are of the time from one step to the
// next. Only on a GPU do operations overlap.
func (s *session) printProfile(name string, p device.Profile, gpu bool) {
	fmt.Fprintf(s.stdout, "\n%s allocator, a step of %d extra ones, timed operation by operation:\n", name, p.Steps)
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name, count string, t time.Duration, flops, bytes float64) {
		rate := func(amount, unit float64) string {
			if amount == 0 || t <= 0 {
				return ""
			}
			return fmt.Sprintf("%.1f", amount/t.Seconds()/unit)
		}
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%s\t%s\t%.1f %%\t\n", name, count, float64(t)/float64(time.Microsecond),
			rate(flops, 1e9), rate(bytes, 1e9), 100*float64(t)/float64(p.Step))
	}
	fmt.Fprintln(w, "operation\tcount\tµs\tGFLOP/s\tGB/s\tshare\t")
	var flops float64
	for _, o := range p.Ops {
		row(o.Name+" "+o.Shape, fmt.Sprint(o.Count), o.Time, o.FLOPs, o.Bytes)
		flops += o.FLOPs
	}
	switch {
	case p.Gaps() >= 0:
		row("gaps between them", "", p.Gaps(), 0, 0)
	case gpu:
		fmt.Fprintln(w, "gaps between them: none, operations overlap\t\t\t\t\t\t")
	default:
		fmt.Fprintln(w, "gaps between them: none, within noise\t\t\t\t\t\t")
	}
	row("step", "", p.Step, flops, 0)
	w.Flush()
}
