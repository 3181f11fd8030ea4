// SPDX-License-Identifier: Apache-2.0

// cilium/ebpf's perf.Reader with ReadInto, as a contender of readers.py.
// usage: readers_cilium MAP_FD BYTES; for each line "N": reads N records, prints the CPU nanoseconds.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/perf"
	"golang.org/x/sys/unix"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// All threads' time: what the runtime does beside the reader is a part of its price.
func cpuNs() int64 {
	var now unix.Timespec
	fail(unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now))
	return now.Nano()
}

func main() {
	fd, err := strconv.Atoi(os.Args[1])
	fail(err)
	bytes, err := strconv.Atoi(os.Args[2])
	fail(err)
	events, err := ebpf.NewMapFromFD(fd)
	fail(err)
	reader, err := perf.NewReader(events, bytes)
	fail(err)
	defer reader.Close()
	fmt.Println("ready")
	var wanted int
	for {
		if _, err := fmt.Scan(&wanted); err != nil {
			return
		}
		var record perf.Record
		begun, passed := cpuNs(), time.Now().Add(-time.Second)
		// In the past: what the rings hold is read without waiting for the watermark.
		reader.SetDeadline(passed)
		for seen := 0; seen < wanted; {
			err := reader.ReadInto(&record)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				reader.SetDeadline(passed)
				continue
			}
			fail(err)
			if record.LostSamples == 0 {
				seen++
			}
		}
		fmt.Println(cpuNs() - begun)
	}
}
