package rundir

import (
	"cmp"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"
)

// driverVersion is the file in which NVIDIA's driver says on Linux what it is:
//
//	NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 01:40:07 UTC 2025
const driverVersion = "/proc/driver/nvidia/version"

// ThisMachine describes the computer that the program runs on. What the system does not
// say is left out.
func ThisMachine() Machine {
	m := Machine{OS: cmp.Or(platform(), runtime.GOOS), CPU: runtime.GOARCH, Cores: runtime.GOMAXPROCS(0)}
	m.Host, _ = os.Hostname()
	if infos, err := cpu.Info(); err == nil && len(infos) > 0 {
		m.CPU = cmp.Or(infos[0].ModelName, m.CPU)
	}
	if v, err := mem.VirtualMemory(); err == nil {
		m.Memory = int64(v.Total)
	}
	return m
}

// platform is the name and version of the system, such as debian 12.5, or "" if it does not say. It is asked once,
// since on some systems the answer comes from a script.
var platform = sync.OnceValue(func() string {
	name, _, version, err := host.PlatformInformation()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(cmp.Or(name, runtime.GOOS) + " " + version)
})

// NVIDIADriver is the version of NVIDIA's driver, such as 570.124.06, or "" where the
// system does not say.
func NVIDIADriver() string {
	text, err := os.ReadFile(driverVersion)
	if err != nil {
		return ""
	}
	return parseDriver(string(text))
}

// parseDriver returns the first word of the first line that begins with a number.
func parseDriver(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	for _, word := range strings.Fields(line) {
		if word[0] >= '0' && word[0] <= '9' {
			return word
		}
	}
	return ""
}
