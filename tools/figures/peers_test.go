package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPeers writes tables and a picture from a small CSV of tools/peers.py.
func TestPeers(t *testing.T) {
	text, err := os.ReadFile("testdata/peers.csv")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, old, new string
		want           []string // in assets/README.md
		err            string
	}{
		{name: "all", want: []string{
			"\n| width × batch | mlpool, tf32 | JAX, tf32 | PyTorch, tf32 | mlpool, 3xtf32 | JAX, fp32 | PyTorch, fp32 |\n",
			"\n| 784×64 | 29.4 | 78.0 | 172 | 32.9 | 109 | 191 |\n", "\n| 4096×8192 | 155 | 65.8 | – | 307 | 378 | – |\n"}},
		{name: "one more of two GPUs", old: "\nours,0,tf32,784,64,4,1,", new: "\nours,0,tf32,784,64,4,2,1,1,1,7,0.9,1\nours,0,tf32,784,64,4,1,", want: []string{
			"\n| 784×64 | 29.4 | 78.0 | 172 | 32.9 | 109 | 191 |\n"}},
		{name: "no JAX", old: "\njax,", new: "\nflax,", want: []string{"\n| 784×64 | 29.4 | – | 172 | 32.9 | – | 191 |\n"}},
		{name: "none of mlpool", old: "\nours,0,tf32,784,64,", new: "\nours,0,fp8,784,64,", err: "peers_h200.csv: no ms of framework ours precision tf32 feat_dim 784 bsz 64 layers 4 gpus 1"},
		{name: "bf16", old: "\nours,0,tf32,784,64,4,1,", new: "\nours,0,bf16,784,64,4,1,28.4,28,29,7,0.9600,868446208\njax,0.11.2,bf16,784,64,4,1,71,70,72,7,0.9600,868446208\nours,0,tf32,784,64,4,1,", want: []string{
			" | PyTorch, fp32 | mlpool, bf16 | JAX, bf16 | PyTorch, bf16 |\n", "\n| 784×64 | 29.4 | 78.0 | 172 | 32.9 | 109 | 191 | 28.4 | 71.0 | – |\n",
			"\n| 4096×8192 | 155 | 65.8 | – | 307 | 378 | – | – | – | – |\n"}},
		{name: "bf16 on two GPUs", old: "\nours,0,tf32,784,64,4,1,", new: "\nours,0,bf16,784,64,4,2,28.4,28,29,7,0.9600,868446208\nours,0,tf32,784,64,4,1,", want: []string{
			"\n| 784×64 | 29.4 | 78.0 | 172 | 32.9 | 109 | 191 |\n"}},
		{name: "no number", old: ",0.9600,868446208\n", new: ",0.9600,many\n", err: `flop_step of framework ours precision tf32 feat_dim 784 bsz 64 layers 4 gpus 1 is "many", not a number`},
	} {
		changed := strings.ReplaceAll(string(text), c.old, c.new)
		if c.old == "" {
			changed = string(text)
		}
		dir := written(t, c.name, peersFile, changed, c.want, c.err)
		if c.err != "" {
			continue
		}
		png, err := os.ReadFile(filepath.Join(dir, "assets/peers.png"))
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range peers {
			if strings.Contains(changed, "\n"+p.framework+",") {
				wantColor(t, png, i, p.name)
			}
		}
	}
}

func TestPeerTexts(t *testing.T) {
	for flop, want := range map[float64]string{1e8: "0.1", 1e9: "1", 1e12: "1000"} {
		if got := gigaText(flop); got != want {
			t.Errorf("%v is %q, want %q", flop, got, want)
		}
	}
}
