package rundir

import (
	"time"
)

// Names of the files in a run's folder. Weights and a recording are missing if the run ended too
// early.
const (
	FactsFile     = "run.json"            // [Facts]
	ConfigFile    = "config.toml"         // the effective config: every key
	RecordsFile   = "metrics.jsonl"       // a [Record] a line
	LossesFile    = "train_losses.txt"    // the mean loss of each step, in nats
	ValLossesFile = "val_losses.txt"      // of each epoch, in nats
	ValAccsFile   = "val_accs.txt"        // of each epoch, 0 to 1
	WeightsFile   = "weights.safetensors" // the last checkpoint
	BestFile      = "best.safetensors"    // a checkpoint of the epoch with the lowest validation loss
	RecordingFile = "recording.json"      // report.Recording
)

// ComparisonFile is in a comparison's folder, next to the folders of its runs.
const ComparisonFile = "comparison.json"

// Latest is a symbolic link in a log_dir to the newest run or comparison there.
const Latest = "latest"

// A Status says how far a run got.
type Status string

// Running is also the status of a run whose process was killed.
const (
	Running     Status = "running"
	Done        Status = "done"
	Interrupted Status = "interrupted"
	Diverged    Status = "diverged"
	Failed      Status = "failed"
)

// Facts say what was run, where, and how it ended: run.json.
type Facts struct {
	Version string   `json:"version"`          // of the program
	Commit  string   `json:"commit,omitempty"` // of the sources; "COMMIT, modified" if they differ from it
	Command []string `json:"command"`
	Config  string   `json:"config"` // as named on the command line; "-": standard input

	Device    string `json:"device"`              // "cuda" or "cpu"
	GPU       *GPU   `json:"gpu,omitempty"`       // nil on the CPU
	Precision string `json:"precision,omitempty"` // fp32, tf32, 3xtf32 or bf16
	Executor  string `json:"executor"`            // eager or graph

	Name      string `json:"name"`               // of the allocator as the user gave it: custom, custom:bestfit, custom:slack=1/64
	Allocator string `json:"allocator"`          // its kind: custom, cuda or malloc
	Strategy  string `json:"strategy,omitempty"` // of an allocator that has a pool
	Segments  string `json:"segments,omitempty"` // likewise: virtual, malloc, or both
	Seed      uint64 `json:"seed"`

	Ranks       int    `json:"ranks,omitempty"`       // that trained together, each on such a device; 0: one
	Collectives string `json:"collectives,omitempty"` // what moved data between them: "NCCL 2.27.3"

	// Place is the run's place in a comparison; differences are from 1. A run by itself has 0.
	Place int `json:"place,omitempty"`

	// ResumedFrom is the folder of the run that this one resumed. Its epochs are among this one's.
	ResumedFrom string `json:"resumed_from,omitempty"`

	Machine Machine    `json:"machine"`
	Start   time.Time  `json:"start"`
	End     *time.Time `json:"end,omitempty"` // nil: the run has not ended
	Status  Status     `json:"status"`
	Error   string     `json:"error,omitempty"` // why the status is neither running nor done
	Epochs  int        `json:"epochs"`          // that are complete
}

// A GPU is the one that a run computed on.
type GPU struct {
	Name              string `json:"name"`
	ComputeCapability string `json:"compute_capability"`    // "9.0"
	Memory            int64  `json:"memory"`                // bytes
	Driver            string `json:"driver,omitempty"`      // NVIDIA's version, such as 570.124.06; empty: unknown
	CUDADriver        string `json:"cuda_driver,omitempty"` // the newest CUDA that the driver supports
	CUDARuntime       string `json:"cuda_runtime"`          // the toolkit that the kernels were compiled with
}

// A Machine is the computer around the GPU.
type Machine struct {
	Host   string `json:"host"`
	OS     string `json:"os"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`  // that the program may use
	Memory int64  `json:"memory"` // bytes; 0: unknown
}
