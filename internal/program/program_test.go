package program

import (
	"runtime/debug"
	"testing"
)

func TestNewBuild(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	settings := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-26T23:00:00Z"}, {Key: "vcs.modified", Value: modified}, {Key: "-tags", Value: "cuda"}}
	}
	for _, c := range []struct {
		info    debug.BuildInfo
		toolkit int
		stamp   string
		want    string
	}{
		{debug.BuildInfo{GoVersion: "go1.26.0"}, 0, "", "mlpool (devel), commit not noted, go1.26.0, built without CUDA"},
		{debug.BuildInfo{GoVersion: "go1.26.0"}, 0, "$Format:%H %cs$", "mlpool (devel), commit not noted, go1.26.0, built without CUDA"},
		{debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "(devel)"}}, 0, "v1.2.3 " + commit + " 2026-11-27", "mlpool v1.2.3, commit " + commit + " of 2026-11-27, go1.26.0, built without CUDA"},
		{debug.BuildInfo{GoVersion: "go1.26.0"}, 0, " " + commit + " 2026-11-27 modified", "mlpool (devel), commit " + commit + " of 2026-11-27, modified, go1.26.0, built without CUDA"},
		{debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v1.2.3"}, Settings: settings("false")}, 11080, "", "mlpool v1.2.3, commit abc of 2026-11-26, go1.26.0, CUDA 11.8"},
		{debug.BuildInfo{GoVersion: "go1.26.0", Settings: settings("true")}, 13010, "v9 " + commit + " 2026-11-27", "mlpool (devel), commit abc of 2026-11-26, modified, go1.26.0, CUDA 13.1"},
	} {
		if got := newBuild(&c.info, c.toolkit, c.stamp).String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
