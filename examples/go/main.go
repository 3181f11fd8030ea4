// SPDX-License-Identifier: Apache-2.0

// A trigger datagram from Go: one send that never blocks (docs: the contract's trigger datagram, section 5).
// Where spans end, call Report with the span's ids; here they are made up. usage: go run . [REASON]
package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Trigger is one datagram; what is empty is left out.
type Trigger struct {
	V           int    `json:"v"`
	Kind        string `json:"kind"`
	TraceID     string `json:"trace_id,omitempty"`
	SpanID      string `json:"span_id,omitempty"`
	StartNano   int64  `json:"start_unix_nano,omitempty"`
	EndNano     int64  `json:"end_unix_nano,omitempty"`
	ServiceName string `json:"service_name,omitempty"`
	Name        string `json:"name,omitempty"`
	Interleaved bool   `json:"interleaved"`
	Reason      string `json:"reason,omitempty"`
}

// Report sends the trigger to the agent, if there is one. Goroutines change threads: interleaved is always true here.
func Report(trigger Trigger) error {
	path := os.Getenv("OTEL_PERFBUF_TRIGGER_SOCKET")
	if path == "" {
		path = "/run/otel-perfbuf/trigger.sock"
	}
	trigger.V, trigger.Interleaved = 1, true
	data, err := json.Marshal(trigger)
	if err != nil {
		return err
	}
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(socket)
	// EAGAIN: the agent has more than it can dump; ECONNREFUSED, ENOENT: there is none. Neither is the application's fault.
	return syscall.Sendto(socket, data, 0, &syscall.SockaddrUnix{Name: path})
}

func main() {
	reason := "payment gateway timed out"
	if len(os.Args) > 1 {
		reason = os.Args[1]
	}
	start := time.Now()
	os.ReadFile("/nonexistent/settings.json")
	ids := make([]byte, 24)
	rand.Read(ids)
	err := Report(Trigger{
		Kind: "span_error", TraceID: hex.EncodeToString(ids[:16]), SpanID: hex.EncodeToString(ids[16:]),
		StartNano: start.UnixNano(), EndNano: time.Now().UnixNano(), ServiceName: "shop", Name: "POST /pay", Reason: reason,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "no dump was asked for:", err)
		os.Exit(1)
	}
}
