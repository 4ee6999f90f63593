// Package launch finds out which of several processes this one is, and brings them
// together.
//
// Who starts them says so in the environment: mpirun, srun and torchrun each with variables
// of their own, which [FromEnv] reads. [Rendezvous] connects all ranks to rank 0 over TCP. The
// connections carry words, no tensors: whether all have the same config, the id that NCCL
// needs, sums of the weights to compare, and why one of them ended, which ends all. Each rank
// also says all the time that it lives: a process that is stopped or a host that is lost does
// not, which ends all as well.
//
// # Who may take part
//
// Others may reach the port of rank 0 too. It listens only on the interfaces that MASTER_ADDR
// stands for, or on all where that is no address of its host that others can reach. Behind a
// greeting with a fresh nonce of each side, every line has an HMAC, by a key that follows from both
// nonces, a secret of the launch and the direction. So a line of one who does not know the secret,
// or a line that is sent again, or back, or in another place, is no message. Before the ranks have
// met, what is no message ends a connection, never a rank; nothing of it is printed. The lines are
// not encrypted, nor is what NCCL sends.
//
// The secret is the first of these that there is:
//
//   - RENDEZVOUS_SECRET ([SecretEnv]), the same for all ranks. srun and MPICH's mpirun pass on the
//     environment in which they are started; Open MPI's needs -x RENDEZVOUS_SECRET, and torchrun has
//     it from where it is started on each host. The id of a run of torchrun's, or of a job of
//     Slurm's, is none: others can list them.
//   - The key of 128 random bits that mpirun of Open MPI up to 4 makes for each launch and gives to
//     all ranks, OMPI_MCA_orte_precondition_transports.
//   - For ranks on one host, a random one of the user's in mlpool/rendezvous.key in the folder for
//     caches (~/.cache), which only the user can read.
//
// Without any the ranks meet all the same. Then the HMAC keeps out only those who do not speak as
// ranks do, and [World.Warning] says so.
package launch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Process is one of those that were started together.
type Process struct {
	Rank, Size int
	Local      int    // the rank among those on the same host
	Launcher   string // "Open MPI"; empty: the process was started by itself
	Job        string // tells launches apart that meet at one place; empty: nothing does
	Address    string // host and port where rank 0 is met; empty: there is one rank
	OneHost    bool   // all ranks are on this host
	Secret     string // that all ranks know; empty: there is none

	Within time.Duration // how long the ranks wait for each other to meet and to connect
}

// A launcher is who starts ranks, and the variables that it sets: of those of the rank on the
// host the first that is set counts.
type launcher struct {
	name       string
	rank, size string
	local      []string
	localSize  string   // how many ranks are on the host
	job        []string // which together name the launch
	key        string   // a secret that it makes for the launch; empty: it makes none
	command    string
	slurm      bool // not another one in a job of Slurm's
}

// launchers are all. Of Slurm, SLURM_PROCID is set in batch scripts as well, whose commands
// nobody starts several times: only steps count.
var launchers = []launcher{
	{"torchrun", "RANK", "WORLD_SIZE", []string{"LOCAL_RANK"}, "LOCAL_WORLD_SIZE", []string{"TORCHELASTIC_RUN_ID"}, "", "torchrun --no-python", false},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", []string{"OMPI_COMM_WORLD_LOCAL_RANK"}, "OMPI_COMM_WORLD_LOCAL_SIZE", []string{"PMIX_NAMESPACE"}, "OMPI_MCA_orte_precondition_transports", "mpirun", false},
	{"PMI", "PMI_RANK", "PMI_SIZE", []string{"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"}, "MPI_LOCALNRANKS", nil, "", "mpirun", false},
	{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", []string{"SLURM_LOCALID"}, "", []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}, "", "srun", true},
}

// FromEnv returns the process that an environment is of. Where several launchers have set
// variables, one inside the other, the first in the order above that has set all of them
// counts. It is a [HalfError] if only some are set.
func FromEnv(env func(string) string) (Process, error) {
	var half error
	for _, l := range launchers {
		local := l.local[0]
		for _, name := range l.local {
			if env(name) != "" {
				local = name
				break
			}
		}
		var set, missing []string
		for _, name := range []string{l.rank, l.size, local} {
			if env(name) == "" {
				missing = append(missing, name)
			} else {
				set = append(set, name)
			}
		}
		switch {
		case len(missing) == 0:
			var job []string
			for _, name := range l.job {
				job = append(job, env(name))
			}
			return l.numbered(Process{Launcher: l.name, Job: strings.Trim(strings.Join(job, "."), ".")}, env, local)
		case len(set) > 0 && half == nil && (!l.slurm || env(l.size) != ""):
			half = &HalfError{set, missing, l.command}
		}
	}
	return Process{Size: 1}, half
}

// A HalfError is why variables of a launcher make no launch: some are missing.
type HalfError struct {
	Set, Missing []string
	command      string // of the launcher
}

func (e *HalfError) Error() string {
	set := strings.Join(e.Set, ", ")
	return fmt.Sprintf("half a launch: %s without %s: start all ranks with %s, or unset %s", set, strings.Join(e.Missing, ", "), e.command, set)
}

// maxRanks is more than anyone starts.
const maxRanks = 1 << 16

// numbered is p with what the variables say, of which local is that of the rank on its host.
func (l launcher) numbered(p Process, env func(string) string, local string) (_ Process, err error) {
	for _, v := range []struct {
		name string
		to   *int
	}{{l.rank, &p.Rank}, {l.size, &p.Size}, {local, &p.Local}} {
		n, err := strconv.ParseUint(env(v.name), 10, 0)
		if err != nil || n > maxRanks {
			return p, fmt.Errorf("%s=%s is no number of a rank: want one from 0 to %d", v.name, env(v.name), maxRanks)
		}
		*v.to = int(n)
	}
	if p.Rank >= p.Size {
		return p, fmt.Errorf("%s=%d is no rank of %s=%d: they count from 0", l.rank, p.Rank, l.size, p.Size)
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

// TimeoutEnv is the environment variable that says how long ranks wait for each other at the
// start, as in 5m. Without it that is DefaultTimeout.
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

// address is where rank 0 is met.
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
		host = FirstHost(hosts)
	default:
		return "", errors.New("the ranks are on several hosts: set MASTER_ADDR to that of rank 0")
	}
	port, err := masterPort(p, oneHost || isLoopback(host), env)
	return net.JoinHostPort(host, port), err
}

// masterHost is what MASTER_ADDR says, without the brackets that IPv6 addresses have in URLs.
func masterHost(addr string) (string, error) {
	host := strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]")
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, ":/[] \t") {
		return "", fmt.Errorf("MASTER_ADDR=%s: want the name or the IP address of a host; its port is MASTER_PORT", addr)
	}
	return host, nil
}

// isLoopback says whether nobody but this host meets there.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

func parsePort(text string) (port uint64, ok bool) {
	port, err := strconv.ParseUint(text, 10, 16)
	return port, err == nil && port > 0
}

// hosts says whether all ranks are on one host, and which hosts there are, as Slurm lists them;
// empty: it is not known. In a job of Slurm's another launcher's daemons are steps of their own,
// whose variables the ranks have as well.
func (l launcher) hosts(p Process, env func(string) string) (one bool, list string) {
	if l.slurm {
		return env("SLURM_STEP_NUM_NODES") == "1", first(env, "SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
	}
	return env(l.localSize) == strconv.Itoa(p.Size), env("SLURM_JOB_NODELIST")
}

// masterPort is MASTER_PORT, or a port that follows from the job: jobs on the same hosts
// should not meet.
func masterPort(p Process, oneHost bool, env func(string) string) (string, error) {
	if port := env("MASTER_PORT"); port != "" {
		n, ok := parsePort(port)
		if !ok || n == 65535 {
			return "", fmt.Errorf("MASTER_PORT=%s: want a port", port)
		}
		if env("TORCHELASTIC_USE_AGENT_STORE") == "True" { // torchrun itself listens there
			n++
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
	_, _ = h.Write([]byte(name)) // a hash takes all
	return strconv.Itoa(10000 + int(h.Sum32()%20000)), nil
}

// launchHere is the same for all ranks of a launch on this host: the process from which their
// session comes, that of a terminal, say. MPICH begins one for each rank, which comes from its
// daemon. The parent would not do, since a script around the program is one.
func launchHere() string {
	_, session := parentAndSession("self")
	if session == "" { // there is no /proc
		return strconv.Itoa(os.Getppid())
	}
	parent, _ := parentAndSession(session)
	return cmp.Or(parent, session)
}

// parentAndSession are those of a process, as /proc has them behind its name and state; empty:
// it is not known.
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

// first is the value of the first variable that is set.
func first(env func(string) string, names ...string) string {
	for _, name := range names {
		if v := env(name); v != "" {
			return v
		}
	}
	return ""
}

// FirstHost is the first host of a list as Slurm writes it: gpu01 of gpu[01-04,07],big1.
func FirstHost(list string) string {
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

// TakeGPU makes the rank's GPU the only visible one. It unsets NCCL_COMM_ID, on whose address
// rank 0 may listen already.
func (p Process) TakeGPU() error {
	const visible = "CUDA_VISIBLE_DEVICES"
	one, err := p.VisibleDevice(os.Getenv(visible))
	if err != nil {
		return err
	}
	return errors.Join(os.Setenv(visible, one), os.Unsetenv("NCCL_COMM_ID"))
}

// VisibleDevice returns the rank's entry of CUDA_VISIBLE_DEVICES, by its local rank, which it
// is itself where there are none. A single entry is kept: the launcher chose it.
func (p Process) VisibleDevice(was string) (string, error) {
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
	return "", fmt.Errorf("CUDA_VISIBLE_DEVICES=%s has no GPU for the rank that is number %d on its host: start at most %d ranks there", was, p.Local, len(devices))
}
