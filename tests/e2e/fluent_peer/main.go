// SPDX-License-Identifier: Apache-2.0

// A Fluent peer for the end-to-end tests: IBM's fluent-forward-go, linked and nothing else.
// What it is not: it holds no protocol of its own. usage:
//
//	fluent_peer client ADDRESS KEY    one error in each mode, acknowledged; exit 1 when one is not
//	fluent_peer server KEY            prints its address, then a line of JSON for each event that it gets
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/IBM/fluent-forward-go/fluent/client"
	"github.com/IBM/fluent-forward-go/fluent/protocol"
	"github.com/tinylib/msgp/msgp"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func runClient(address, key string) {
	peer := client.New(client.ConnectionOptions{
		Factory:           &client.ConnFactory{Network: "tcp", Address: address},
		RequireAck:        true,
		ConnectionTimeout: 20 * time.Second,
		AuthInfo:          client.AuthInfo{SharedKey: []byte(key)},
	})
	peer.Hostname = "peer"
	must(peer.Connect())
	must(peer.Handshake())
	record := func(mode string) map[string]interface{} {
		return map[string]interface{}{"level": "error", "message": mode}
	}
	entries := func(mode string) protocol.EntryList {
		return protocol.EntryList{{Timestamp: protocol.EventTimeNow(), Record: record(mode)}}
	}
	must(peer.SendMessage("app", record("message")))
	must(peer.SendMessageExt("app", record("message with EventTime")))
	must(peer.SendForward("app", entries("forward")))
	must(peer.SendPacked("app", entries("packed")))
	must(peer.SendCompressed("app", entries("compressed")))
	must(peer.Disconnect())
}

func serve(connection net.Conn, key []byte) error {
	defer connection.Close()
	helo := protocol.NewHelo(&protocol.HeloOpts{Nonce: []byte("0123456789abcdef"), Keepalive: true})
	if err := msgp.Encode(connection, helo); err != nil {
		return err
	}
	reader := msgp.NewReader(connection)
	var ping protocol.Ping
	if err := ping.DecodeMsg(reader); err != nil {
		return err
	}
	refusal := protocol.ValidatePingDigest(&ping, key, helo.Options.Nonce)
	reason := ""
	if refusal != nil {
		reason = refusal.Error()
	}
	pong, err := protocol.NewPong(refusal == nil, reason, "peer", key, helo, &ping)
	if err != nil {
		return err
	}
	if err := msgp.Encode(connection, pong); err != nil || refusal != nil {
		return err
	}
	for {
		var message protocol.PackedForwardMessage
		if err := message.DecodeMsg(reader); err != nil {
			return err
		}
		var entries protocol.EntryList
		if _, err := entries.UnmarshalPacked(message.EventStream); err != nil {
			return err
		}
		for _, entry := range entries {
			line, err := json.Marshal(map[string]interface{}{
				"tag": message.Tag, "unix_ns": entry.Timestamp.UnixNano(), "record": entry.Record,
			})
			if err != nil {
				return err
			}
			fmt.Println(string(line))
		}
		if err := msgp.Encode(connection, &protocol.AckMessage{Ack: message.Options.Chunk}); err != nil {
			return err
		}
	}
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "client" {
		runClient(os.Args[2], os.Args[3])
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Println(listener.Addr())
	for {
		connection, err := listener.Accept()
		must(err)
		go func() { log.Println(serve(connection, []byte(os.Args[2]))) }()
	}
}
