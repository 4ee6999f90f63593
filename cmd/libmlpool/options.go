//go:build linux && cgo

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/configs"
)

// options are those of mlpool_create.
type options struct {
	pool        allocator.PoolOptions
	driver      cudadriver.Options
	allPeers    bool // every device that can access the memory is one of driver.Peers
	traceEvents int
	streamsLast bool // as long as the pool, or until mlpool_release_stream
	autoShare   bool // driver.Shareable is what the device can
}

// probe finds out what the device can, where the options leave it to that.
func (o *options) probe() error {
	if o.autoShare {
		_, err := cudadriver.New(cudadriver.Options{Device: o.driver.Device, Shareable: true})
		o.driver.Shareable = err == nil
	}
	if !o.allPeers {
		return nil
	}
	count, err := cudadriver.DeviceCount()
	for i := range count {
		if i == o.driver.Device {
			continue
		}
		peer := cudadriver.Options{Device: o.driver.Device, Peers: []int{i}}
		if _, err := cudadriver.New(peer); err == nil {
			o.driver.Peers = append(o.driver.Peers, i)
		}
	}
	return err
}

// poolKeys are the keys of section [allocator] that configure a pool.
var poolKeys = []string{
	"strategy", "reuse", "segments", "segment_bytes", "max_segment_bytes", "gc_threshold", "slack", "busy_slack",
	"preallocate", "max_bytes", "max_fraction",
}

// ownKeys are the keys that section [allocator] does not have, or has with another meaning.
var ownKeys = map[string]func(o *options, value string) error{
	"keep_mapped":  func(o *options, v string) error { return boolean(&o.pool.KeepMapped, v) },
	"streams_last": func(o *options, v string) error { return boolean(&o.streamsLast, v) },
	"shareable": func(o *options, v string) error {
		if o.autoShare = v == "auto"; o.autoShare {
			return nil
		}
		return boolean(&o.driver.Shareable, v)
	},
	"trace_events": func(o *options, v string) error { return number(&o.traceEvents, v, 1<<30) },
	"peers": func(o *options, v string) error {
		if v == "all" {
			o.allPeers = true
			return nil
		}
		for device := range strings.SplitSeq(v, ":") {
			var n int
			if err := number(&n, device, 1<<10); err != nil {
				return err
			}
			o.driver.Peers = append(o.driver.Peers, n)
		}
		return nil
	},
}

func boolean(at *bool, v string) (err error) {
	if *at, err = strconv.ParseBool(v); err != nil {
		return fmt.Errorf("is %.40q: want true or false", v)
	}
	return nil
}

func number(at *int, v string, most int) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > most {
		return fmt.Errorf("is %.40q: want a number from 0 to %d", v, most)
	}
	*at = n
	return nil
}

// parseOptions reads a list KEY=VALUE,KEY=VALUE for a device. environment has lines NAME=VALUE; a variable
// MLPOOL_KEY is a value for a key that the list does not name.
func parseOptions(device int, list string, environment []string) (options, error) {
	o := options{driver: cudadriver.Options{Device: device}}
	values, from := map[string]string{}, map[string]string{}
	for _, line := range environment {
		name, value, _ := strings.Cut(line, "=")
		key, ours := strings.CutPrefix(name, "MLPOOL_")
		if ours && key != "LIBRARY" && key != "COMPUTE_CAPABILITY" { // those are for Python and for kernels
			key = strings.ToLower(key)
			values[key], from[key] = value, fmt.Sprintf("variable %.40q", name)
		}
	}
	for setting := range strings.SplitSeq(list, ",") {
		key, value, found := strings.Cut(strings.TrimSpace(setting), "=")
		if key == "" && !found {
			continue
		}
		if !found {
			return o, fmt.Errorf("mlpool: option %.40q: want key=value", setting)
		}
		key = strings.TrimSpace(key)
		values[key], from[key] = strings.TrimSpace(value), fmt.Sprintf("option %.40q", key)
	}
	c := configs.Default()
	for key, value := range values {
		if err := o.set(&c, key, value); err != nil {
			return o, fmt.Errorf("mlpool: %s: %w", from[key], err)
		}
	}
	pool, err := c.Allocator.PoolOptions()
	if err != nil {
		return o, fmt.Errorf("mlpool: %w", err)
	}
	pool.KeepMapped = o.pool.KeepMapped
	o.pool = pool
	return o, nil
}

// set sets one option.
func (o *options) set(c *configs.Config, key, value string) error {
	if set := ownKeys[key]; set != nil {
		return set(o, value)
	}
	if slices.Contains(poolKeys, key) {
		return c.Set("allocator."+key, value)
	}
	keys := slices.Clone(poolKeys)
	for key := range ownKeys {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if near := configs.Nearest(key, keys); near >= 0 {
		return fmt.Errorf("there is no option %.40q: did you mean %s?", key, keys[near])
	}
	return fmt.Errorf("there is no option %.40q; there are %s", key, strings.Join(keys, ", "))
}
