package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTranslateFile wants two files of one name in two folders apart.
func TestTranslateFile(t *testing.T) {
	root, out := t.TempDir(), t.TempDir()
	for _, file := range []struct{ path, text, to string }{
		{"gemm/a.cu", "f<<<1, 2>>>(x);", "gemm/a.cu.cpp"}, {"nn/a.cu", "int x;", "nn/a.cu.cpp"}, {"a.cuh", "int y;", "a.cuh"},
	} {
		path := filepath.Join(root, file.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(file.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := translateFile(out, root, path); err != nil {
			t.Fatal(err)
		}
		want, err := translate(file.text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(out, file.to)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q in %s", file.path, got, err, want, file.to)
		}
	}
	if err := translateFile(out, root, filepath.Join(root, "none.cu")); err == nil {
		t.Error("a file that is not there: no error")
	}
}

func TestTranslate(t *testing.T) {
	for _, test := range []struct{ cuda, want string }{
		{`int f(int x) { return x << 3 >> 1; }`, `int f(int x) { return x << 3 >> 1; }`},
		{`relu<<<blocks(n, 256), 256, 0, s>>>(y, n);`, `emulator::call({blocks(n, 256), 256, 0, s}, relu)(y, n);`},
		{`extern __shared__ __align__(16) float a[];`, `float *a = emulator::dynamic_shared<float>();`},
		{`__shared__ unsigned long a[2][N], b;`, `auto &a = emulator::static_shared<unsigned long[2][N]>([] { static char site; return &site; }()); ` +
			`auto &b = emulator::static_shared<unsigned long>([] { static char site; return &site; }());`},
		{`asm volatile("" : "+r"(x));`, `(void)0;`},
		{`asm volatile("bar.sync 0;" ::: "memory"); f(")");`, `emulator::bar_sync_0(); f(")");`},
		{`asm("add.u32 %0, %1, %2;" : "=r"(c[0]) : "r"(g(a, 1)), "n"(4 * W) : "memory");`, `emulator::add_u32(c[0], g(a, 1), 4 * W);`},
		{`asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; @p st.shared.f32 [%0], %2;}" ::"r"(to), "r"(int(mine)), "f"(v) : "memory");`,
			`emulator::setp_ne_s32_0_st_shared_f32(to, int(mine), v);`},
		{`asm volatile("a.b [%0], 16, %1; c 0;" ::"r"(to), "r"(bytes));`, `emulator::a_b_16_c_0(to, bytes);`},
		{`asm("mov.u32 %0, %%laneid;" : "=r"(lane));`, `emulator::mov_u32_laneid(lane);`},
		{`asm volatile(
			"{\n.reg .pred p;\nagain:\n"
			"a.b::c p, [%0];\n@!p bra again;\n}" ::"r"(x)
			: "memory");`, `emulator::a_b_c_bra(x);`},
		{`asm("a.b {" NAMES "}, %8;" : D4(0), D4(4) : A, "l"(f(b, 1)));`, `emulator::a_b(D4(0), D4(4), A, f(b, 1));`},
		{"#define D2(i) \"+f\"(d[i]), \"+f\"(d[i + 1])\nx", "#define D2(i) (d[i]), (d[i + 1])\nx"},
		{`asm("a.b;" : "=r"(x)); asm("c;" ::"l"(y));`, `emulator::a_b(x); emulator::c(y);`},
	} {
		got, err := translate(test.cuda)
		if err != nil || got != test.want {
			t.Errorf("%s\nbecomes  %s, %v\nwant     %s", test.cuda, got, err, test.want)
		}
	}
	for _, wrong := range []string{`asm volatile("bar.sync 0;"`, `asm(text)`, `asm("add %0;" : "=r"(x)`} {
		if got, err := translate(wrong); err == nil {
			t.Errorf("%s becomes %s", wrong, got)
		}
	}
}
