// SPDX-License-Identifier: Apache-2.0

import java.io.FileInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.concurrent.ThreadLocalRandom;
import jnr.unixsocket.UnixDatagramChannel;
import jnr.unixsocket.UnixSocketAddress;

/**
 * A trigger datagram from Java. The JDK has Unix stream sockets only, jnr-unixsocket has datagrams (Maven:
 * com.github.jnr:jnr-unixsocket; Debian: libjnr-unixsocket-java). Call report() where spans end; here the ids are made up.
 *
 * <p>usage: javac -cp '/usr/share/java/*' Trigger.java && java -cp '/usr/share/java/*:.' Trigger [REASON]
 */
public final class Trigger {
    private Trigger() {}

    /** Sends one datagram to the agent, if there is one. */
    static void report(String traceId, String spanId, Instant start, Instant end, String reason) throws IOException {
        String path = System.getenv().getOrDefault("OTEL_PERFBUF_TRIGGER_SOCKET", "/run/otel-perfbuf/trigger.sock");
        // Without "tid" no call is put to the span for its thread's sake: the JVM does not tell the kernel's thread ids.
        String text = "{\"v\":1,\"kind\":\"span_error\",\"trace_id\":\"" + traceId + "\",\"span_id\":\"" + spanId
                + "\",\"start_unix_nano\":" + nanos(start) + ",\"end_unix_nano\":" + nanos(end)
                + ",\"service_name\":\"shop\",\"name\":\"POST /pay\",\"reason\":" + quoted(reason) + "}";
        try (UnixDatagramChannel channel = UnixDatagramChannel.open()) {
            channel.configureBlocking(false);
            channel.send(ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8)), new UnixSocketAddress(path));
        }
    }

    private static long nanos(Instant time) {
        return time.getEpochSecond() * 1_000_000_000L + time.getNano();
    }

    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each < ' ' || each == '"' || each == '\\') {
                json.append(String.format("\\u%04x", (int) each));
            } else {
                json.append(each);
            }
        }
        return json.append('"').toString();
    }

    public static void main(String[] arguments) throws IOException {
        Instant start = Instant.now();
        try (FileInputStream settings = new FileInputStream("/nonexistent/settings.json")) {
            settings.read();
        } catch (IOException failed) {
            ThreadLocalRandom random = ThreadLocalRandom.current();
            String traceId = String.format("%016x%016x", random.nextLong(), random.nextLong());
            String spanId = String.format("%016x", random.nextLong());
            report(traceId, spanId, start, Instant.now(),
                    arguments.length > 0 ? arguments[0] : "payment gateway timed out");
        }
    }
}
