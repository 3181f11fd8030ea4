// SPDX-License-Identifier: Apache-2.0
//
// A trigger datagram from Node. Node has no Unix datagram sockets of its own: the package unix-dgram has
// (`npm install` here). Call report() where spans end; here the ids are made up. usage: node trigger.js [REASON]
"use strict";

const crypto = require("node:crypto");
const fs = require("node:fs");
const unix = require("unix-dgram");

const path = process.env.OTEL_PERFBUF_TRIGGER_SOCKET || "/run/otel-perfbuf/trigger.sock";

/** Sends one datagram to the agent, if there is one; never blocks, never throws. Times are bigints in nanoseconds. */
function report({ kind, traceId, spanId, start, end, serviceName, name, reason }) {
  // An event loop ran other requests on this thread meanwhile: interleaved. JSON.stringify leaves undefined out.
  const fields = { v: 1, kind, trace_id: traceId, span_id: spanId, service_name: serviceName, name, reason };
  let text = JSON.stringify({ ...fields, interleaved: true });
  // Nanoseconds are more than a double holds: they go in as they are.
  if (start && end) text = `${text.slice(0, -1)},"start_unix_nano":${start},"end_unix_nano":${end}}`;
  const socket = unix.createSocket("unix_dgram");
  socket.on("error", () => socket.close()); // no agent, or it has more than it can dump
  const data = Buffer.from(text);
  socket.send(data, 0, data.length, path, () => socket.close());
}

const start = BigInt(Date.now()) * 1000000n;
try {
  fs.readFileSync("/nonexistent/settings.json");
} catch {
  report({
    kind: "span_error",
    traceId: crypto.randomBytes(16).toString("hex"),
    spanId: crypto.randomBytes(8).toString("hex"),
    start,
    end: BigInt(Date.now()) * 1000000n,
    serviceName: "shop",
    name: "POST /pay",
    reason: process.argv[2] || "payment gateway timed out",
  });
}
