package launch

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func environment(vars ...string) func(string) string {
	return func(name string) string {
		for _, v := range vars {
			if key, value, _ := strings.Cut(v, "="); key == name {
				return value
			}
		}
		return ""
	}
}

func TestFromEnv(t *testing.T) {
	torch := []string{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "MASTER_ADDR=node", "MASTER_PORT=29500"}
	mpi := []string{"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=3", "OMPI_COMM_WORLD_LOCAL_SIZE=8", "MASTER_PORT=12345"}
	slurm := []string{"SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=1", "SLURM_STEP_ID=0", "SLURM_JOB_ID=77", "SLURM_STEP_NODELIST=gpu[08-09],x", "MASTER_PORT=4000"}
	join := slices.Concat[[]string]
	here := launchHere()
	for _, c := range []struct {
		name string
		env  []string
		want Process
		err  string
	}{
		{"alone", nil, Process{Size: 1}, ""},
		{"torchrun", torch, Process{1, 2, 1, "torchrun", "", "node:29500", false, "", DefaultTimeout}, ""},
		{"torchrun that listens itself", join(torch, []string{"TORCHELASTIC_USE_AGENT_STORE=True"}), Process{1, 2, 1, "torchrun", "", "node:29501", false, "", DefaultTimeout}, ""},
		{"mpirun", mpi, Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "", DefaultTimeout}, ""},
		{"mpirun with MASTER_ADDR", join(mpi, []string{"MASTER_ADDR=fe80::1"}), Process{3, 8, 3, "Open MPI", here, "[fe80::1]:12345", true, "", DefaultTimeout}, ""},
		{"NCCL_COMM_ID", join(mpi, []string{"NCCL_COMM_ID=10.0.0.1:999"}), Process{3, 8, 3, "Open MPI", here, "10.0.0.1:999", true, "", DefaultTimeout}, ""},
		{"NCCL_COMM_ID without a port", join(mpi, []string{"NCCL_COMM_ID=10.0.0.1"}), Process{}, "want HOST:PORT"},
		{"mpirun on hosts", []string{"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=3", "OMPI_COMM_WORLD_LOCAL_SIZE=4"}, Process{}, "set MASTER_ADDR"},
		{"MPICH", []string{"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2", "MASTER_PORT=9"}, Process{0, 2, 0, "PMI", here, "127.0.0.1:9", true, "", DefaultTimeout}, ""},
		{"srun", slurm, Process{5, 8, 1, "Slurm", "77.0", "gpu08:4000", false, "", DefaultTimeout}, ""},
		{"srun on a host", join(slurm, []string{"SLURM_STEP_NUM_NODES=1"}), Process{5, 8, 1, "Slurm", "77.0", "127.0.0.1:4000", true, "", DefaultTimeout}, ""},
		{"srun with PMI-2", join(slurm, []string{"PMI_RANK=5", "PMI_SIZE=8"}), Process{5, 8, 1, "Slurm", "77.0", "gpu08:4000", false, "", DefaultTimeout}, ""},
		{"mpirun in a batch script", join(mpi, []string{"SLURM_PROCID=0", "SLURM_LOCALID=0"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "", DefaultTimeout}, ""},
		{"mpirun whose daemon srun has started", []string{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=1",
			"SLURM_STEP_NUM_NODES=1", "SLURM_STEP_NODELIST=n2", "SLURM_NODELIST=n2", "SLURM_JOB_NODELIST=n[1-2]", "MASTER_PORT=9"}, Process{1, 2, 0, "Open MPI", "", "n1:9", false, "", DefaultTimeout}, ""},
		{"torchrun without MASTER_ADDR", []string{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_PORT=9"}, Process{1, 2, 1, "torchrun", here, "127.0.0.1:9", true, "", DefaultTimeout}, ""},
		{"batch script", []string{"SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=8"}, Process{Size: 1}, ""},
		{"srun after export WORLD_SIZE", join(slurm, []string{"WORLD_SIZE=8"}), Process{5, 8, 1, "Slurm", "77.0", "gpu08:4000", false, "", DefaultTimeout}, ""},
		{"mpirun -np 1", []string{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0"}, Process{0, 1, 0, "Open MPI", "", "", false, "", 0}, ""},
		{"torchrun in a step", join(torch, slurm[3:5], []string{"TORCHELASTIC_RUN_ID=7"}), Process{1, 2, 1, "torchrun", "7", "node:29500", false, "", DefaultTimeout}, ""},
		{"mpirun that names its job", join(mpi, []string{"PMIX_NAMESPACE=prterun-x-7@1"}), Process{3, 8, 3, "Open MPI", "prterun-x-7@1", "127.0.0.1:12345", true, "", DefaultTimeout}, ""},
		{"hosts without a port", []string{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1", "MASTER_ADDR=gpu1"}, Process{}, "set MASTER_PORT"},
		{"half torchrun", []string{"RANK=1"}, Process{}, "half a launch: RANK without WORLD_SIZE, LOCAL_RANK: start all ranks with torchrun --no-python, or unset RANK"},
		{"a pod of Kubeflow", []string{"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=localhost", "MASTER_PORT=23456"}, Process{Size: 1}, ""},
		{"one of two pods", []string{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=job-master-0", "MASTER_PORT=23456"}, Process{}, "half a launch: RANK, WORLD_SIZE without LOCAL_RANK: start all ranks with torchrun --no-python"},
		{"mpirun in a pod", join(mpi, []string{"RANK=0", "WORLD_SIZE=1"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "", DefaultTimeout}, ""},
		{"the last port", join(torch[:4], []string{"MASTER_PORT=65535"}), Process{1, 2, 1, "torchrun", "", "node:65535", false, "", DefaultTimeout}, ""},
		{"the last port of torchrun", join(torch[:4], []string{"MASTER_PORT=65535", "TORCHELASTIC_USE_AGENT_STORE=True"}), Process{}, "MASTER_PORT=65535: want a lower port"},
		{"srun --pty", []string{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0", "SLURM_PTY_PORT=40123", "PMIX_RANK=0"}, Process{Size: 1}, ""},
		{"mpirun in srun --pty", join(mpi, []string{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0", "SLURM_PTY_PORT=40123"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "", DefaultTimeout}, ""},
		{"srun with PMIx", join(slurm, []string{"PMIX_RANK=5"}), Process{5, 8, 1, "Slurm", "77.0", "gpu08:4000", false, "", DefaultTimeout}, ""},
		{"jsrun", []string{"JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE=2", "JSM_NAMESPACE_LOCAL_RANK=1", "PMIX_RANK=1"}, Process{}, "half a launch: PMIX_RANK, JSM_NAMESPACE_RANK without the number of ranks: start all ranks with mpirun, srun or torchrun, or unset PMIX_RANK, JSM_NAMESPACE_RANK"},
		{"bare PMIx", []string{"PMIX_RANK=1", "PMIX_NAMESPACE=x"}, Process{}, "half a launch: PMIX_RANK without the number of ranks: start all ranks with mpirun"},
		{"half mpirun", []string{"OMPI_COMM_WORLD_SIZE=2"}, Process{}, "half a launch: OMPI_COMM_WORLD_SIZE without "},
		{"half srun", []string{"SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0"}, Process{}, "without SLURM_LOCALID"},
		{"no number", []string{"RANK=one", "WORLD_SIZE=2", "LOCAL_RANK=0"}, Process{}, "RANK=one: want a number from 0 to 65536"},
		{"below zero", []string{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=-1"}, Process{}, "LOCAL_RANK=-1: want a number"},
		{"more than anyone starts", []string{"RANK=0", "WORLD_SIZE=99999999999999999", "LOCAL_RANK=0"}, Process{}, "WORLD_SIZE=99999999999999999: want a number from 0 to 65536"},
		{"more than a number", []string{"RANK=0", "WORLD_SIZE=99999999999999999999", "LOCAL_RANK=0"}, Process{}, "WORLD_SIZE=99999999999999999999: want a number"},
		{"IPv6 in brackets", join(mpi, []string{"MASTER_ADDR=[::1]"}), Process{3, 8, 3, "Open MPI", here, "[::1]:12345", true, "", DefaultTimeout}, ""},
		{"IPv6 with a zone", join(mpi, []string{"MASTER_ADDR=fe80::1%eth0"}), Process{3, 8, 3, "Open MPI", here, "[fe80::1%eth0]:12345", true, "", DefaultTimeout}, ""},
		{"a port too much", join(mpi, []string{"MASTER_ADDR=node:29500"}), Process{}, "MASTER_ADDR=node:29500: want the name or the IP address of a host; its port is MASTER_PORT"},
		{"a URL", join(mpi, []string{"MASTER_ADDR=tcp://node"}), Process{}, "MASTER_ADDR=tcp://node: want the name"},
		{"patience", join(mpi, []string{"RENDEZVOUS_TIMEOUT=5m"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "", 5 * time.Minute}, ""},
		{"patience without a unit", join(mpi, []string{"RENDEZVOUS_TIMEOUT=300"}), Process{}, "RENDEZVOUS_TIMEOUT=300: want a time such as 90s or 5m"},
		{"no patience", join(mpi, []string{"RENDEZVOUS_TIMEOUT=0s"}), Process{}, "RENDEZVOUS_TIMEOUT=0s: want a time"},
		{"a secret", join(mpi, []string{"RENDEZVOUS_SECRET=" + secret, "OMPI_MCA_orte_precondition_transports=5fbd0d3c8e4195f1-80f964226d1575ea"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, secret, DefaultTimeout}, ""},
		{"a short secret", join(mpi, []string{"RENDEZVOUS_SECRET=secret"}), Process{}, "RENDEZVOUS_SECRET has 6 characters, want at least 16: export RENDEZVOUS_SECRET=$(openssl rand -hex 16)"},
		{"a key of Open MPI's", join(mpi, []string{"OMPI_MCA_orte_precondition_transports=5fbd0d3c8e4195f1-80f964226d1575ea"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "5fbd0d3c8e4195f1-80f964226d1575ea", DefaultTimeout}, ""},
		{"a key from Slurm's numbers", join(mpi, []string{"OMPI_MCA_orte_precondition_transports=017569a900000000-017569a900000000"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "", DefaultTimeout}, ""},
		{"no key", join(mpi, []string{"OMPI_MCA_orte_precondition_transports=5fbd0d3c8e4195f1-80f9"}), Process{3, 8, 3, "Open MPI", here, "127.0.0.1:12345", true, "", DefaultTimeout}, ""},
		{"a job's number is no secret", join(torch, []string{"TORCHELASTIC_RUN_ID=5fbd0d3c8e4195f1-80f964226d1575ea"}), Process{1, 2, 1, "torchrun", "5fbd0d3c8e4195f1-80f964226d1575ea", "node:29500", false, "", DefaultTimeout}, ""},
		{"NCCL_COMM_ID without a host", join(mpi, []string{"NCCL_COMM_ID=:999"}), Process{}, "want HOST:PORT"},
		{"NCCL_COMM_ID of a wrong port", join(mpi, []string{"NCCL_COMM_ID=10.0.0.1:99999"}), Process{}, "want HOST:PORT"},
		{"too high", []string{"RANK=2", "WORLD_SIZE=2", "LOCAL_RANK=0"}, Process{}, "RANK=2 is not below WORLD_SIZE=2"},
		{"no port", []string{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=x"}, Process{}, "MASTER_PORT=x: want a port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromEnv(environment(c.env...))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// TestPort wants the same port on all ranks of a job.
func TestPort(t *testing.T) {
	of := func(job string) string {
		p, err := masterPort(Process{Size: 2, Job: job}, true, environment())
		if err != nil || len(p) != 5 {
			t.Errorf("port %q, %v", p, err)
		}
		return p
	}
	for _, job := range []string{"77.1", "77.2", ""} {
		if one, again := of(job), of(job); one != again || job != "77.1" && one == of("77.1") {
			t.Errorf("job %q: ports %s and %s", job, one, again)
		}
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"gpu01": "gpu01", "a,b": "a", "gpu[01-04,07],big": "gpu01", "n[7]": "n7", "n[3,5]": "n3", "big,n[1-2]": "big",
		"rack[2-3]n[05-9],x": "rack2n05", "n[1-2]-ib": "n1-ib",
	} {
		if got := firstHost(list); got != want {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
}

func TestVisibleDevice(t *testing.T) {
	for _, c := range []struct {
		local     int
		was, want string
	}{
		{0, "", "0"}, {3, "", "3"}, {1, "4,5", "5"}, {1, "GPU-ab", "GPU-ab"}, {2, "4,5", "error"},
	} {
		got, err := Process{Local: c.local}.visibleDevice(c.was)
		if c.want == "error" {
			if err == nil || !strings.Contains(err.Error(), "at most 2 ranks") {
				t.Errorf("number %d of %q: %v", c.local, c.was, err)
			}
		} else if err != nil || got != c.want {
			t.Errorf("number %d of %q: %q, %v, want %q", c.local, c.was, got, err, c.want)
		}
	}
}
