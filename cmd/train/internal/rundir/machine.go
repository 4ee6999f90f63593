package rundir

import (
	"cmp"
	"os"
	"runtime"
	"strings"

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
	m := Machine{OS: runtime.GOOS, CPU: runtime.GOARCH, Cores: runtime.GOMAXPROCS(0)}
	if name, err := os.Hostname(); err == nil {
		m.Host = name
	}
	if platform, _, version, err := host.PlatformInformation(); err == nil {
		m.OS = strings.TrimSpace(cmp.Or(platform, m.OS) + " " + version)
	}
	if infos, err := cpu.Info(); err == nil && len(infos) > 0 {
		m.CPU = cmp.Or(infos[0].ModelName, m.CPU)
	}
	if v, err := mem.VirtualMemory(); err == nil {
		m.Memory = int64(v.Total)
	}
	return m
}

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
