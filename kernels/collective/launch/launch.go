// Package launch finds out which rank this process is, and connects all ranks of a launch.
//
// A rank is one of the processes that train together. mpirun, srun and torchrun each describe it
// in environment variables, which [FromEnv] reads. [Rendezvous] connects all ranks to rank 0 over
// TCP. The connections carry control messages and no tensors: configs to compare, the id that NCCL
// needs, sums of the weights to compare, and the error of a rank that fails, which ends all ranks.
// Each rank also sends heartbeats, so that a stopped process or a lost host ends all ranks too.
//
// # Security
//
// Rank 0 listens only on the interfaces of MASTER_ADDR, or on all if that is not an address of its
// host that others can reach. Each side of a connection starts with a greeting that has a fresh
// nonce. Every line after that has an HMAC, with a key derived from both nonces, the secret of the
// launch and the direction. So a line from a sender that does not know the secret is rejected, as
// is a line that is repeated, reflected or moved to another connection. Before the ranks have met,
// a rejected line closes its connection but never ends a rank, and nothing of it is printed but the
// number of another version of the protocol. Lines are not encrypted, nor is NCCL's traffic.
//
// The secret is the first of these:
//
//   - RENDEZVOUS_SECRET ([SecretEnv]), the same for all ranks. srun and MPICH's mpirun pass on the
//     environment in which they are started; Open MPI's needs -x RENDEZVOUS_SECRET, and torchrun
//     takes it from its own environment on each host. An id of a torchrun run or a Slurm job is not
//     a secret, since others can list them.
//   - OMPI_MCA_orte_precondition_transports, the key of 128 random bits that mpirun of Open MPI up
//     to 4 makes for each launch and gives to all ranks.
//   - For ranks on one host, a random key in mlpool/rendezvous.key in the user's cache folder, which
//     only the user can read.
//
// Without a secret the ranks meet all the same, and [World.Warning] says that others may join.
package launch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Process describes this process among those that were started together.
type Process struct {
	Rank, Size int
	Local      int    // rank among those on the same host
	Launcher   string // "Open MPI", or "" if the process was started alone
	Job        string // distinguishes launches at the same address, or "" if it is not known
	Address    string // host and port of rank 0, or "" if there is one rank
	OneHost    bool   // all ranks are on this host
	Secret     string // known to all ranks, or "" if there is none

	Within time.Duration // how long the ranks wait for each other to meet and to connect
}

// A launcher is a program that starts ranks, and the variables that it sets.
type launcher struct {
	name       string
	rank, size string
	local      []string // the first that is set counts
	localSize  string   // number of ranks on the host
	job        []string // together they name the launch
	key        string   // a secret that it makes for the launch, or ""
	command    string
	slurm      bool
}

// launchers lists the known launchers. Slurm sets SLURM_PROCID in batch scripts as well, which run
// once: only variables of a step count. Of srun --pty the first task is a terminal, whose programs are alone.
var launchers = []launcher{
	{"torchrun", "RANK", "WORLD_SIZE", []string{"LOCAL_RANK"}, "LOCAL_WORLD_SIZE", []string{"TORCHELASTIC_RUN_ID"}, "", "torchrun --no-python", false},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", []string{"OMPI_COMM_WORLD_LOCAL_RANK"}, "OMPI_COMM_WORLD_LOCAL_SIZE", []string{"PMIX_NAMESPACE"}, "OMPI_MCA_orte_precondition_transports", "mpirun", false},
	{"PMI", "PMI_RANK", "PMI_SIZE", []string{"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"}, "MPI_LOCALNRANKS", nil, "", "mpirun", false},
	{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", []string{"SLURM_LOCALID"}, "", []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}, "", "srun", true},
}

// ranksAlone are variables of PMIx and jsrun with a rank. What else they set is not enough to meet.
var ranksAlone = []string{"PMIX_RANK", "JSM_NAMESPACE_RANK"}

// FromEnv returns the process that an environment describes. If launchers are nested, the first in
// launchers that has set all of its variables counts. The error is a [*HalfError] if one has set only
// some, unless it has started a single process.
func FromEnv(env func(string) string) (Process, error) {
	var half error
	isSet := func(name string) bool { return env(name) != "" }
	terminal := env("SLURM_PTY_PORT") != "" && env("SLURM_PROCID") == "0"
	for _, l := range launchers {
		if l.slurm && terminal {
			continue
		}
		local := l.local[max(0, slices.IndexFunc(l.local, isSet))]
		var set, missing []string
		for _, name := range []string{l.rank, l.size, local} {
			if isSet(name) {
				set = append(set, name)
			} else {
				missing = append(missing, name)
			}
		}
		switch {
		case len(missing) == 0:
			var job []string
			for _, name := range l.job {
				job = append(job, env(name))
			}
			return l.numbered(Process{Launcher: l.name, Job: strings.Trim(strings.Join(job, "."), ".")}, env, local)
		case env(l.rank) == "0" && env(l.size) == "1": // as of one pod of Kubeflow
		case len(set) > 0 && half == nil && (!l.slurm || env(l.size) != ""):
			half = &HalfError{set, missing, l.command}
		}
	}
	if slices.ContainsFunc(ranksAlone, isSet) && half == nil && !terminal {
		set := slices.DeleteFunc(slices.Clone(ranksAlone), func(name string) bool { return !isSet(name) })
		half = &HalfError{set, []string{"the number of ranks"}, "mpirun, srun or torchrun"}
	}
	return Process{Size: 1}, half
}

// A HalfError reports a launcher that has set only some of its variables.
type HalfError struct {
	Set, Missing []string
	command      string // of the launcher
}

func (e *HalfError) Error() string {
	set := strings.Join(e.Set, ", ")
	return fmt.Sprintf("half a launch: %s without %s: start all ranks with %s, or unset %s", set, strings.Join(e.Missing, ", "), e.command, set)
}

// maxRanks bounds ranks and their number.
const maxRanks = 1 << 16

// numbered returns p with the values of the launcher's variables. local is the variable of
// Process.Local.
func (l launcher) numbered(p Process, env func(string) string, local string) (_ Process, err error) {
	for _, v := range []struct {
		name string
		to   *int
	}{{l.rank, &p.Rank}, {l.size, &p.Size}, {local, &p.Local}} {
		n, err := strconv.ParseUint(env(v.name), 10, 0)
		if err != nil || n > maxRanks {
			return p, fmt.Errorf("%s=%s: want a number from 0 to %d", v.name, env(v.name), maxRanks)
		}
		*v.to = int(n)
	}
	if p.Rank >= p.Size {
		return p, fmt.Errorf("%s=%d is not below %s=%d: ranks count from 0", l.rank, p.Rank, l.size, p.Size)
	}
	if p.Size == 1 {
		return p, nil
	}
	oneHost, hosts := l.hosts(p, env)
	if oneHost && p.Job == "" {
		p.Job = launchHere()
	}
	if p.Within, err = timeout(env(TimeoutEnv)); err != nil {
		return p, err
	}
	if p.Secret, err = l.secret(env); err != nil {
		return p, err
	}
	if p.Address, err = address(p, oneHost, hosts, env); err != nil {
		return p, err
	}
	host, _, err := net.SplitHostPort(p.Address)
	p.OneHost = oneHost || isLoopback(host)
	return p, err
}

// TimeoutEnv is the environment variable with the time that ranks wait for each other at the
// start, such as 5m. Without it they wait for DefaultTimeout.
const (
	TimeoutEnv     = "RENDEZVOUS_TIMEOUT"
	DefaultTimeout = 30 * time.Second
)

func timeout(text string) (time.Duration, error) {
	if text == "" {
		return DefaultTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s=%s: want a time such as 90s or 5m", TimeoutEnv, text)
	}
	return d, nil
}

// address returns the address of rank 0.
func address(p Process, oneHost bool, hosts string, env func(string) string) (string, error) {
	host, err := masterHost(env("MASTER_ADDR"))
	if err != nil {
		return "", err
	}
	if id := env("NCCL_COMM_ID"); host == "" && id != "" {
		host, port, err := net.SplitHostPort(id)
		if _, isPort := parsePort(port); err != nil || host == "" || !isPort {
			return "", fmt.Errorf("NCCL_COMM_ID=%s: want HOST:PORT", id)
		}
		return id, nil
	}
	switch {
	case host != "":
	case oneHost:
		host = "127.0.0.1"
	case hosts != "":
		host = firstHost(hosts)
	default:
		return "", errors.New("the ranks are on several hosts: set MASTER_ADDR to that of rank 0")
	}
	port, err := masterPort(p, oneHost || isLoopback(host), env)
	return net.JoinHostPort(host, port), err
}

// masterHost returns the host of MASTER_ADDR, without the brackets of an IPv6 address.
func masterHost(addr string) (string, error) {
	host := strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]")
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, ":/[] \t") {
		return "", fmt.Errorf("MASTER_ADDR=%s: want the name or the IP address of a host; its port is MASTER_PORT", addr)
	}
	return host, nil
}

// isLoopback reports whether only this host can reach host.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

func parsePort(text string) (port uint64, ok bool) {
	port, err := strconv.ParseUint(text, 10, 16)
	return port, err == nil && port > 0
}

// hosts reports whether all ranks are on one host, and returns Slurm's list of hosts, or "" if it is
// not known. Within a Slurm job, another launcher's ranks inherit the variables of its daemons'
// steps, so only the list of the whole job counts for them.
func (l launcher) hosts(p Process, env func(string) string) (one bool, list string) {
	if l.slurm {
		return env("SLURM_STEP_NUM_NODES") == "1", cmp.Or(env("SLURM_STEP_NODELIST"), env("SLURM_NODELIST"), env("SLURM_JOB_NODELIST"))
	}
	return env(l.localSize) == strconv.Itoa(p.Size), env("SLURM_JOB_NODELIST")
}

// masterPort returns MASTER_PORT, or a port derived from the job, so that jobs on the same hosts do
// not meet.
func masterPort(p Process, oneHost bool, env func(string) string) (string, error) {
	if port := env("MASTER_PORT"); port != "" {
		n, ok := parsePort(port)
		if !ok {
			return "", fmt.Errorf("MASTER_PORT=%s: want a port", port)
		}
		if env("TORCHELASTIC_USE_AGENT_STORE") == "True" { // torchrun itself listens there
			if n++; n > math.MaxUint16 {
				return "", fmt.Errorf("MASTER_PORT=%s: want a lower port, since torchrun listens there and ranks meet at the next one", port)
			}
		}
		return strconv.FormatUint(n, 10), nil
	}
	name := p.Job
	switch {
	case name == "" && !oneHost:
		return "", errors.New("the ranks have no port in common: set MASTER_PORT to one that is free on the host of rank 0")
	case name == "":
		name = launchHere()
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return strconv.Itoa(10000 + int(h.Sum32()%20000)), nil
}

// launchHere returns an id that all ranks of a launch on this host share: the parent of their
// session's leader. MPICH starts a session for each rank, with the same parent. The rank's own parent
// may be a script around the program.
func launchHere() string {
	_, session := parentAndSession("self")
	if session == "" { // there is no /proc
		return strconv.Itoa(os.Getppid())
	}
	parent, _ := parentAndSession(session)
	return cmp.Or(parent, session)
}

// parentAndSession returns those of a process from /proc, or "" if they are not known.
func parentAndSession(process string) (parent, session string) {
	text, err := os.ReadFile("/proc/" + process + "/stat")
	if err != nil {
		return "", ""
	}
	if fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])); len(fields) > 3 {
		return fields[1], fields[3]
	}
	return "", ""
}

// firstHost returns the first host of a Slurm list: gpu01 of gpu[01-04,07],big1.
func firstHost(list string) string {
	host := ""
	for {
		end := strings.IndexAny(list, ",[")
		if end < 0 {
			return host + list
		}
		host += list[:end]
		if list[end] == ',' {
			return host
		}
		numbers, rest, _ := strings.Cut(list[end+1:], "]")
		number, _, _ := strings.Cut(numbers, ",")
		number, _, _ = strings.Cut(number, "-")
		host, list = host+number, rest
	}
}

// TakeGPU makes the rank's GPU the only visible one. It unsets NCCL_COMM_ID, since rank 0 may listen
// at that address already.
func (p Process) TakeGPU() error {
	const visible = "CUDA_VISIBLE_DEVICES"
	one, err := p.visibleDevice(os.Getenv(visible))
	if err != nil {
		return err
	}
	return errors.Join(os.Setenv(visible, one), os.Unsetenv("NCCL_COMM_ID"))
}

// visibleDevice returns the rank's entry of CUDA_VISIBLE_DEVICES, whose value is was. If it is empty,
// that is the local rank. A single entry was chosen by the launcher and is kept.
func (p Process) visibleDevice(was string) (string, error) {
	if was == "" {
		return strconv.Itoa(p.Local), nil
	}
	devices := strings.Split(was, ",")
	switch {
	case len(devices) == 1:
		return was, nil
	case p.Local < len(devices):
		return devices[p.Local], nil
	}
	return "", fmt.Errorf("CUDA_VISIBLE_DEVICES=%s has no GPU for local rank %d: start at most %d ranks there", was, p.Local, len(devices))
}
