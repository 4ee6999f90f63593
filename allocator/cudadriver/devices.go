package cudadriver

import (
	"fmt"
	"slices"
)

// Options are the settings of a [Driver]. The zero value is that of the zero Driver.
type Options struct {
	Device int
	// Peers are other devices whose kernels can use the pages that MapPages maps.
	Peers []int
	// Shareable makes pages that other processes can map, with ExportPages or Send. They are
	// also memory that NCCL can register, like that of ncclMemAlloc.
	Shareable bool
}

// options are those of a Driver, and never change.
type options struct {
	peers     []int32 // without the Driver's own device
	shareable bool
}

// DeviceCount returns the number of devices.
func DeviceCount() (int, error) {
	n, code := rawDeviceCount()
	return int(n), check("DeviceCount", code)
}

// New returns a Driver with options o. The error names a device that does not exist, and two
// devices of which one cannot use the other's memory. It is errors.ErrUnsupported if the device
// cannot map pages that Peers or Shareable need.
func New(o Options) (Driver, error) {
	const op = "New"
	d := Driver{Events: Events{o.Device}}
	if err := exists(op, append([]int{o.Device}, o.Peers...)...); err != nil {
		return Driver{}, err
	}
	if err := check(op, rawAvailable(o.Device)); err != nil {
		return Driver{}, err
	}
	var peers []int32
	for _, p := range o.Peers {
		if p == o.Device || slices.Contains(peers, int32(p)) {
			continue
		}
		// Kernels of the peer use memory of the device.
		can, code := rawCanAccessPeer(p, o.Device)
		if err := check(op, code); err != nil {
			return Driver{}, err
		}
		if can == 0 {
			return Driver{}, fmt.Errorf("cudadriver: %s: device %d cannot use the memory of device %d", op, p, o.Device)
		}
		peers = append(peers, int32(p))
	}
	if peers == nil && !o.Shareable {
		return d, nil
	}
	d.options = &options{peers, o.Shareable}
	if _, err := d.PageSize(); err != nil {
		return Driver{}, fmt.Errorf("cudadriver: %s: Peers and Shareable need pages: %w", op, err)
	}
	return d, nil
}

// exists returns an error if there is no CUDA, or one of the devices does not exist.
func exists(op string, devices ...int) error {
	n, code := rawDeviceCount()
	if err := check(op, code); err != nil {
		return err
	}
	for _, device := range devices {
		if device < 0 || device >= int(n) {
			return fmt.Errorf("cudadriver: %s: device %d does not exist: there are %d, numbered from 0", op, device, n)
		}
	}
	return nil
}

// shareable reports whether CreatePages makes pages that can be exported.
func (d Driver) shareable() bool { return d.options != nil && d.options.shareable }

// needShareable returns an error unless d is Shareable.
func (d Driver) needShareable(op string) error {
	if d.shareable() {
		return nil
	}
	if err := check(op, rawAvailable(d.device)); err != nil {
		return err
	}
	return fmt.Errorf("cudadriver: %s: the Driver is not Shareable: make it by New with Options.Shareable", op)
}

func (d Driver) peers() []int32 {
	if d.options == nil {
		return nil
	}
	return d.options.peers
}
