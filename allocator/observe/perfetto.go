package observe

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"mlpool/allocator"
)

// Work is an operation of the device, such as a kernel.
type Work struct {
	Name, Detail string
	Start        time.Time // on the host's clock
	Length       time.Duration
}

// perfettoEvent is an event in the Trace Event Format.
type perfettoEvent struct {
	Name   string         `json:"name"`
	Cat    string         `json:"cat,omitempty"`
	Phase  string         `json:"ph"`
	Time   float64        `json:"ts"`            // microseconds
	Length *float64       `json:"dur,omitempty"` // required in an X
	Pid    int            `json:"pid"`
	Tid    int            `json:"tid"`
	ID     string         `json:"id,omitempty"`
	Scope  string         `json:"s,omitempty"` // of an instant: p is its process
	Args   map[string]any `json:"args,omitempty"`
}

// Lives of blocks overlap, so they cannot be slices of a thread. They are asynchronous
// slices, which Perfetto groups by process and name. So each stream is a process, after that
// of the device. A process has one thread of the same number, since Perfetto takes thread 0
// for the idle thread.
const perfettoDevice = 1

// perfetto writes one event a line.
type perfetto struct {
	out     *bufio.Writer
	err     error
	begun   bool
	streams map[allocator.Stream]int // processes
	lived   int                      // number of blocks so far
}

func (p *perfetto) put(e perfettoEvent) {
	e.Tid = e.Pid
	line, err := json.Marshal(e)
	if p.err == nil {
		p.err = err
	}
	if p.begun {
		p.out.WriteString(",\n")
	}
	p.begun = true
	p.out.Write(line)
}

// name names a process, or its thread.
func (p *perfetto) name(kind string, pid int, name string) {
	p.put(perfettoEvent{Name: kind, Phase: "M", Pid: pid, Args: map[string]any{"name": name}})
}

// stream returns the process of s, and names a new one.
func (p *perfetto) stream(s allocator.Stream) int {
	pid, known := p.streams[s]
	if !known {
		pid = perfettoDevice + 1 + len(p.streams)
		p.streams[s] = pid
		p.name("process_name", pid, fmt.Sprintf("blocks of stream %#x", s))
	}
	return pid
}

func perfettoTime(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// WritePerfetto writes the events of t as JSON for ui.perfetto.dev: a slice for the life of
// each block, named by its tag, in the process of its stream; counters of the live and the
// reserved bytes; and work, on a track of the device. The life of a block whose Alloc the
// ring has lost begins with the first event. otherData has the number of lost events.
func WritePerfetto(w io.Writer, t *allocator.Trace, work ...Work) error {
	dropped := t.Dropped()
	events, _ := t.Events()
	p := &perfetto{out: bufio.NewWriter(w), streams: map[allocator.Stream]int{}}
	p.out.WriteString(`{"traceEvents":[` + "\n")
	p.name("process_name", perfettoDevice, "device")
	if len(work) > 0 {
		p.name("thread_name", perfettoDevice, "kernels")
	}
	for _, k := range work {
		length := perfettoTime(k.Length)
		e := perfettoEvent{
			Name: k.Name, Cat: "kernel", Phase: "X", Pid: perfettoDevice,
			Time: perfettoTime(k.Start.Sub(t.Begin())), Length: &length,
		}
		if k.Detail != "" {
			e.Args = map[string]any{"shape": k.Detail}
		}
		p.put(e)
	}
	p.lives(events, t.Live())
	fmt.Fprintf(p.out, "\n],\"otherData\":{\"dropped events\":\"%d\"}}\n", dropped)
	if p.err != nil {
		return p.err
	}
	return p.out.Flush()
}

// lives writes events; live are the blocks that are handed out after them.
func (p *perfetto) lives(events []allocator.TraceEvent, live []allocator.LiveBlock) {
	begun := map[uintptr]perfettoEvent{} // by address of a live block
	begin := func(b allocator.LiveBlock, at time.Duration) {
		e := perfettoEvent{
			Name: b.Tag, Cat: "block", Phase: "b", Time: perfettoTime(at), Pid: p.stream(b.Stream), ID: fmt.Sprint(p.lived),
			Args: map[string]any{"bytes": b.Bytes, "address": fmt.Sprintf("%#x", b.Addr)},
		}
		p.lived++
		begun[b.Addr] = e
		p.put(e)
	}
	var from time.Duration
	if len(events) > 0 {
		from = events[0].Time
	}
	named := map[uintptr]bool{}
	for _, e := range events {
		if e.Action == allocator.ActionFree && !named[e.Addr] {
			begin(liveBlock(e), from)
		}
		named[e.Addr] = true
	}
	for _, b := range live {
		if !named[b.Addr] {
			begin(b, from)
		}
	}
	for _, e := range events {
		at := perfettoTime(e.Time)
		switch e.Action {
		case allocator.ActionAlloc:
			begin(liveBlock(e), e.Time)
		case allocator.ActionFree:
			p.put(perfettoEvent{
				Name: begun[e.Addr].Name, Cat: "block", Phase: "e", Time: at, Pid: begun[e.Addr].Pid, ID: begun[e.Addr].ID,
			})
		case allocator.ActionRefuse:
			p.put(perfettoEvent{
				Name: "out of memory: " + e.Tag, Phase: "i", Time: at, Pid: p.stream(e.Stream), Scope: "p",
				Args: map[string]any{"bytes": e.Bytes},
			})
		}
		p.put(perfettoEvent{
			Name: "memory", Phase: "C", Time: at, Pid: perfettoDevice,
			Args: map[string]any{"live": e.Live, "reserved": e.Reserved},
		})
	}
}

// liveBlock returns the block that e allocated or freed.
func liveBlock(e allocator.TraceEvent) allocator.LiveBlock {
	return allocator.LiveBlock{Addr: e.Addr, Bytes: e.Bytes, Stream: e.Stream, Tag: e.Tag}
}
