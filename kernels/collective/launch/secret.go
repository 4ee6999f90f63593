package launch

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SecretEnv is the environment variable with the secret of a launch: at least leastSecret
// characters that only its ranks know.
const (
	SecretEnv   = "RENDEZVOUS_SECRET"
	leastSecret = 16
)

const howToShare = "export " + SecretEnv + "=$(openssl rand -hex 16) before the launch, and mpirun -x " + SecretEnv

// secret returns the value of SecretEnv, or else the launcher's key for the launch, or "".
func (l launcher) secret(env func(string) string) (string, error) {
	switch s := env(SecretEnv); {
	case s == "":
	case len(s) < leastSecret:
		return "", fmt.Errorf("%s has %d characters, want at least %d: %s", SecretEnv, len(s), leastSecret, howToShare)
	default:
		return s, nil
	}
	if l.key == "" || !isRandomKey(env(l.key)) {
		return "", nil
	}
	return env(l.key), nil
}

// isRandomKey reports whether a key of Open MPI, 128 bits as in 5fbd0d3c8e4195f1-80f964226d1575ea, is
// random. Some Slurm plugins make it from the job's number, with zeros in every other 32 bits.
func isRandomKey(key string) bool {
	var words [4]uint32
	_, err := fmt.Sscanf(key, "%8x%8x-%8x%8x", &words[0], &words[1], &words[2], &words[3])
	return err == nil && len(key) == 33 && !slices.Contains(words[:], 0)
}

// userSecret returns the user's secret on this host, for launches on one host. It is in a file that
// only the user can read. The first rank that needs the file creates it.
func userSecret() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "mlpool", "rendezvous.key")
	secret, err := readSecret(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return secret, err
	}
	if err := makeSecret(path); err != nil && !errors.Is(err, fs.ErrExist) { // another rank was faster
		return "", err
	}
	return readSecret(path)
}

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode()&^0o700 != 0 {
		return "", fmt.Errorf("%s can be read by others: delete it", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<10))
	secret := strings.TrimSpace(string(text))
	if err == nil && len(secret) < leastSecret {
		err = fmt.Errorf("%s does not contain a secret: delete it", path)
	}
	return secret, err
}

// makeSecret creates the file, completely or not at all.
func makeSecret(path string) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "rendezvous-*.tmp") // only the user can read it
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, os.Remove(f.Name())) }()
	_, err = io.WriteString(f, rand.Text()+"\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
