package report

import "strings"

func (s *sheet) writeHeader(d *document) {
	d.putf("<header>\n<p class=\"title\">%s</p>\n<h1>%s</h1>\n<p class=\"said\">%s</p>\n", s.Title, s.Headline[0], strings.Join(s.Headline[1:], " "))
	caption := s.Caption
	if caption == "" {
		caption = "Nothing was timed"
	}
	d.startTable("results", "Results by allocator", escaped("%s", caption), append(heads("Allocator"), s.Columns...)...)
	for _, r := range s.Results {
		var row markup
		for _, c := range r.Cells {
			row += escaped("<td%s>%s</td>", classed(c.Class), c.Text)
		}
		d.row(r.Class, r.Name, row)
	}
	d.endTable("")
	d.putf("</header>\n")
}

func (s *sheet) writeFacts(d *document) {
	d.section("facts", "What ran, and where", func() {
		if s.Common != nil {
			d.putf("<dl>\n")
			for _, f := range s.Common {
				d.putf("<div><dt>%s</dt><dd>%s</dd></div>\n", f.Name, f.Value)
			}
			d.putf("</dl>\n")
		} else if s.Heads == nil {
			d.missing("Nothing is known about the runs: their folders have no run.json.")
		}
		if s.Heads != nil {
			d.startTable("words", "What differs between the runs", "What differs", heads(append([]string{""}, s.Heads...)...)...)
			for _, r := range s.Differ {
				d.row("", r.Name, cells(r.Values...))
			}
			d.endTable("")
		}
	})
}

func (s *sheet) writeTimes(d *document) {
	if s.Spread == "" && s.Causes != nil {
		return
	}
	heading, whole := "Time an epoch", "epoch"
	if s.Replay {
		heading, whole = "Time a call", "replay"
	}
	d.section("times", heading, func() {
		if s.Spread == "" {
			d.missing("No whole " + whole + " was timed: let a run finish one.")
			return
		}
		d.chart(s.Spread, s.Timed)
		if s.Differences != "" {
			d.chart(s.Differences, s.Compared)
		}
		d.missing(s.Untold)
		d.missing(s.Outliers)
	})
}

func (s *sheet) writeAllocator(d *document) {
	if s.Replay {
		return
	}
	d.section("allocator", "Time in the allocator", func() {
		if s.Allocator == "" {
			d.missing("No whole epoch was timed: let a run finish one.")
			return
		}
		medians := ""
		if s.Medians {
			medians = "; medians"
		}
		d.chart(s.Allocator, "The host’s time in Alloc and Free, sampled"+medians+". It lengthens an epoch only if the device waits for the host.")
	})
}

func (s *sheet) writeSteps(d *document) {
	if s.Timelines == nil && s.Causes != nil {
		return
	}
	d.section("step", "One step", func() {
		switch {
		case s.Timelines != nil:
			s.writeTimelines(d)
		case s.Replay:
			d.missing("A trace has neither kernels nor times. The report of a training shows its step.")
		default:
			d.missing("No step was recorded: a training with a log_dir records one when it ends normally.")
		}
	})
}

func (s *sheet) writeTimelines(d *document) {
	caption := "Where the time of a step goes, µs"
	if s.Typical != "" {
		caption += "; " + s.Typical
	}
	d.startTable("", "Where the time of a step goes", escaped("%s", caption), heads("Allocator", "step", "in kernels", "in gaps", "in calls", "kernels", "calls", "blocks")...)
	for _, t := range s.Totals {
		d.row("", t.Name, cells(t.Length, t.Kernels, t.Gaps, t.Calls, t.KernelCount, t.CallCount, t.Blocks))
	}
	d.endTable("")
	d.putf("<figure class=\"lanes\">\n")
	d.tools("the steps")
	for _, f := range s.Timelines {
		d.putf("<h3>%s%s</h3>\n", keyed(f.Text), f.Name)
		d.panel(f.Panel)
	}
	for _, note := range s.StepNotes {
		d.missing(note)
	}
	d.putf("<figcaption>\n")
	d.legend(append(s.Steps, legend{"gap", "no kernel"}, legend{"alloc-call", "Alloc"}, legend{"free-call", "Free"})...)
	if s.Several {
		d.putf("One time scale for all runs.\n")
	}
	d.putf("</figcaption>\n</figure>\n")
	if s.NoTimelines != nil {
		d.missing("Without a recorded step: " + strings.Join(s.NoTimelines, ", ") + ".")
	}
}

func (s *sheet) writeLosses(d *document) {
	if s.Replay {
		return
	}
	d.section("losses", "Losses", func() {
		if s.LossText == "" {
			d.missing("No losses were kept: a training with a log_dir keeps them.")
			return
		}
		d.putf("<p>%s</p>\n", s.LossText)
		if s.Losses != "" {
			d.putf("<figure>%s\n", s.Losses)
			if s.LossLegend != nil {
				d.putf("<figcaption>")
				d.legend(s.LossLegend...)
				d.putf("</figcaption>\n")
			}
			d.putf("</figure>\n")
		}
		if s.ValLoss != "" {
			d.grid([]figure{{Name: "Validation loss", Text: "of each epoch", Chart: s.ValLoss}, {Name: "Validation accuracy", Text: "of each epoch, %", Chart: s.ValAcc}})
		}
	})
}
