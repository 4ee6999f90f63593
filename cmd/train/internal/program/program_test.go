package program

import (
	"runtime/debug"
	"testing"
)

func TestNewBuild(t *testing.T) {
	settings := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: modified}, {Key: "-tags", Value: "cuda"}}
	}
	for _, c := range []struct {
		info    debug.BuildInfo
		toolkit int
		want    string
	}{
		{debug.BuildInfo{GoVersion: "go1.26.0"}, 0, "mlpool (devel), commit not noted, go1.26.0, built without CUDA"},
		{debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v1.2.3"}, Settings: settings("false")}, 11080, "mlpool v1.2.3, commit abc, go1.26.0, CUDA 11.8"},
		{debug.BuildInfo{GoVersion: "go1.26.0", Settings: settings("true")}, 13010, "mlpool (devel), commit abc, modified, go1.26.0, CUDA 13.1"},
	} {
		if got := newBuild(&c.info, c.toolkit).String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
