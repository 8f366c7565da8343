import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.LongString;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

import org.json.JSONArray;
import org.json.JSONObject;

/**
 * A peer of AMQP 0-9-1 that shares no code with this project: the Java client of RabbitMQ.
 *
 * <pre>
 * Peer publish DIRECTORY               publishes the messages of the directory, mandatory and confirmed
 * Peer consume DIRECTORY QUEUE N MS    writes the next N messages there, and acknowledges them; waits MS for each
 * </pre>
 *
 * The broker comes from the environment: PEER_HOST, PEER_PORT, PEER_VHOST, PEER_USERNAME, PEER_PASSWORD.
 */
public final class Peer {
    private static final int PREFETCH = 100;
    private static final int LARGEST = 256 * 1024 * 1024;
    private static final long CONFIRM_MS = 120_000;

    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(System.getenv("PEER_HOST"));
        factory.setPort(Integer.parseInt(System.getenv("PEER_PORT")));
        factory.setVirtualHost(System.getenv("PEER_VHOST"));
        factory.setUsername(System.getenv("PEER_USERNAME"));
        factory.setPassword(System.getenv("PEER_PASSWORD"));
        factory.setMaxInboundMessageBodySize(LARGEST);
        factory.setAutomaticRecoveryEnabled(false);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            if (args[0].equals("publish")) {
                publish(channel, Path.of(args[1]));
            } else {
                consume(channel, Path.of(args[1]), args[2], Integer.parseInt(args[3]), Long.parseLong(args[4]));
            }
        }
    }

    // -- publish ---------------------------------------------------------------------------------------------------

    private static void publish(Channel channel, Path directory) throws Exception {
        AtomicReference<String> returned = new AtomicReference<>();
        channel.addReturnListener(message -> returned.set(message.getReplyCode() + " " + message.getReplyText()));
        channel.confirmSelect();
        try (InputStream bodies = new BufferedInputStream(Files.newInputStream(directory.resolve("bodies")))) {
            for (Object entry : new JSONArray(Files.readString(directory.resolve("messages.json")))) {
                JSONObject row = (JSONObject) entry;
                byte[] body = bodies.readNBytes(row.getInt("size"));
                BasicProperties properties = properties(row.getJSONObject("properties"));
                channel.basicPublish(row.getString("exchange"), row.getString("routing_key"), true, properties, body);
            }
        }
        channel.waitForConfirmsOrDie(CONFIRM_MS);
        if (returned.get() != null) {
            throw new IllegalStateException("returned: " + returned.get());
        }
    }

    private static BasicProperties properties(JSONObject given) {
        BasicProperties.Builder builder = new BasicProperties.Builder()
                .contentType(text(given, "content_type"))
                .contentEncoding(text(given, "content_encoding"))
                .correlationId(text(given, "correlation_id"))
                .replyTo(text(given, "reply_to"))
                .expiration(text(given, "expiration"))
                .messageId(text(given, "message_id"))
                .type(text(given, "type"))
                .userId(text(given, "user_id"))
                .appId(text(given, "app_id"))
                .clusterId(text(given, "cluster_id"));
        if (given.has("headers")) {
            builder.headers(table(given.getJSONObject("headers")));
        }
        if (given.has("delivery_mode")) {
            builder.deliveryMode(given.getInt("delivery_mode"));
        }
        if (given.has("priority")) {
            builder.priority(given.getInt("priority"));
        }
        if (given.has("timestamp")) {
            builder.timestamp(new Date(given.getLong("timestamp") * 1000));
        }
        return builder.build();
    }

    private static String text(JSONObject given, String name) {
        return given.has(name) ? given.getString(name) : null;
    }

    private static Map<String, Object> table(JSONObject entries) {
        Map<String, Object> values = new LinkedHashMap<>();
        for (String key : entries.keySet()) {
            values.put(key, value(entries.getJSONArray(key)));
        }
        return values;
    }

    private static Object value(JSONArray pair) {
        switch (pair.getString(0)) {
            case "null":
                return null;
            case "bool":
                return pair.getBoolean(1);
            case "int":
                return smallest(pair.getLong(1));
            case "float":
                return pair.getDouble(1);
            case "decimal":
                return new BigDecimal(pair.getString(1));
            case "str":
                return pair.getString(1);
            case "bytes":
                return bytes(pair.getString(1));
            case "time":
                return new Date(pair.getLong(1) * 1000);
            case "map":
                return table(pair.getJSONObject(1));
            case "list":
                List<Object> values = new ArrayList<>();
                for (Object item : pair.getJSONArray(1)) {
                    values.add(value((JSONArray) item));
                }
                return values;
            default:
                throw new IllegalArgumentException(pair.toString());
        }
    }

    private static Object smallest(long number) {
        if (number == (byte) number) {
            return (byte) number;
        }
        if (number == (short) number) {
            return (short) number;
        }
        if (number == (int) number) {
            return (int) number;
        }
        return number;
    }

    private static byte[] bytes(String hex) {
        byte[] all = new byte[hex.length() / 2];
        for (int i = 0; i < all.length; i++) {
            all[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return all;
    }

    // -- consume ---------------------------------------------------------------------------------------------------

    private static void consume(Channel channel, Path directory, String queue, int count, long patience) throws Exception {
        BlockingQueue<Object> deliveries = new LinkedBlockingQueue<>();
        channel.addShutdownListener(deliveries::add);
        channel.basicQos(PREFETCH);
        String tag = channel.basicConsume(queue, (consumer, delivery) -> deliveries.add(delivery), consumer -> { });
        JSONArray rows = new JSONArray();
        try (OutputStream bodies = new BufferedOutputStream(Files.newOutputStream(directory.resolve("bodies")))) {
            while (rows.length() < count) {
                Object next = deliveries.poll(patience, TimeUnit.MILLISECONDS);
                if (!(next instanceof Delivery)) { // none came in time, or the channel has ended
                    throw new IllegalStateException(rows.length() + " of " + count + " from " + queue, (Throwable) next);
                }
                Delivery delivery = (Delivery) next;
                bodies.write(delivery.getBody());
                rows.put(new JSONObject()
                        .put("size", delivery.getBody().length)
                        .put("routing_key", delivery.getEnvelope().getRoutingKey())
                        .put("exchange", delivery.getEnvelope().getExchange())
                        .put("properties", report(delivery.getProperties())));
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            }
        }
        channel.basicCancel(tag);
        Files.writeString(directory.resolve("messages.json"), rows.toString());
    }

    private static JSONObject report(BasicProperties properties) {
        JSONObject report = new JSONObject() // put leaves out what is null
                .put("content_type", properties.getContentType())
                .put("content_encoding", properties.getContentEncoding())
                .put("delivery_mode", properties.getDeliveryMode())
                .put("priority", properties.getPriority())
                .put("correlation_id", properties.getCorrelationId())
                .put("reply_to", properties.getReplyTo())
                .put("expiration", properties.getExpiration())
                .put("message_id", properties.getMessageId())
                .put("type", properties.getType())
                .put("user_id", properties.getUserId())
                .put("app_id", properties.getAppId())
                .put("cluster_id", properties.getClusterId());
        if (properties.getTimestamp() != null) {
            report.put("timestamp", properties.getTimestamp().getTime() / 1000);
        }
        if (properties.getHeaders() != null) {
            report.put("headers", entries(properties.getHeaders()));
        }
        return report;
    }

    private static JSONObject entries(Map<?, ?> table) {
        JSONObject report = new JSONObject();
        table.forEach((key, value) -> report.put((String) key, spelled(value)));
        return report;
    }

    private static JSONArray spelled(Object value) {
        if (value == null) {
            return pair("null", "");
        }
        if (value instanceof LongString) {
            byte[] raw = ((LongString) value).getBytes();
            try {
                return pair("str", StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(raw)).toString());
            } catch (CharacterCodingException notText) {
                return pair("bytes", hex(raw));
            }
        }
        if (value instanceof byte[]) {
            return pair("bytes", hex((byte[]) value));
        }
        if (value instanceof Boolean) {
            return pair("bool", value);
        }
        if (value instanceof BigDecimal) {
            return pair("decimal", ((BigDecimal) value).toPlainString());
        }
        if (value instanceof Float || value instanceof Double) {
            return pair("float", value.toString()); // JSON has no NaN
        }
        if (value instanceof Number) {
            return pair("int", ((Number) value).longValue());
        }
        if (value instanceof Date) {
            return pair("time", ((Date) value).getTime() / 1000);
        }
        if (value instanceof Map) {
            return pair("map", entries((Map<?, ?>) value));
        }
        if (value instanceof List) {
            JSONArray items = new JSONArray();
            ((List<?>) value).forEach(item -> items.put(spelled(item)));
            return pair("list", items);
        }
        throw new IllegalArgumentException(value.getClass().getName());
    }

    private static JSONArray pair(String kind, Object value) {
        return new JSONArray().put(kind).put(value);
    }

    private static String hex(byte[] raw) {
        StringBuilder text = new StringBuilder();
        for (byte octet : raw) {
            text.append(String.format("%02x", octet));
        }
        return text.toString();
    }
}
