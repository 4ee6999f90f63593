//go:build unix

package rundir

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mlpool/internal/must"
)

// TestPublishAtOnce ends runs at the same time, repeatedly: all shared files are of the same run.
func TestPublishAtOnce(t *testing.T) {
	logDir := t.TempDir()
	var folders []*Folder
	for i := range 8 {
		dir, err := Make(logDir, time.Now(), fmt.Sprint(i))
		must.OK(t, err)
		f, err := Start(dir, Facts{}, nil)
		must.OK(t, err)
		must.OK(t, f.Add(Record{Loss: Nats(i), ValLoss: Nats(i), ValAcc: float64(i)}, []float32{float32(i)}))
		folders = append(folders, f)
	}
	for range 5 {
		var group sync.WaitGroup
		for _, f := range folders {
			group.Go(func() {
				if err := f.Publish(logDir); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		for _, name := range []string{RecordsFile, LossesFile, ValLossesFile, ValAccsFile} {
			shared := must.Read(t, filepath.Join(logDir, name))
			if own, err := os.ReadFile(filepath.Join(logDir, Latest, name)); err != nil || !bytes.Equal(own, shared) {
				t.Errorf("%s is %q, and that of latest %q, %v", name, shared, own, err)
			}
		}
	}
	for _, f := range folders {
		must.OK(t, f.Finish())
	}
}
