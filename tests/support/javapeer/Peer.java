import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageEOFException;
import javax.jms.MessageProducer;
import javax.jms.ObjectMessage;
import javax.jms.Session;
import javax.jms.StreamMessage;
import javax.jms.TextMessage;

import org.apache.qpid.client.AMQAnyDestination;
import org.apache.qpid.client.AMQConnectionFactory;
import org.apache.qpid.client.message.AMQMessageDelegate;
import org.apache.qpid.client.message.AbstractJMSMessage;
import org.apache.qpid.jms.ListMessage;

/**
 * An AMQP 0-10 peer that shares no code with this project: the JMS client of Apache Qpid.
 *
 * <pre>
 * Peer publish-all QUEUE   sends one message of every kind, in the order of expected.json
 * Peer receive QUEUE N MS  prints the next N messages, one JSON object on a line; waits MS milliseconds for each
 * </pre>
 *
 * The broker comes from the environment: PEER_HOST, PEER_PORT, PEER_VHOST, PEER_USERNAME, PEER_PASSWORD. A queue that
 * does not exist is created. Exit code 3: fewer than N messages came in time.
 */
public final class Peer {
    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("qpid.amqp.version", "0-10");
        String url = String.format("amqp://:@peer/%s?brokerlist='tcp://%s:%s'",
                env("PEER_VHOST"), env("PEER_HOST"), env("PEER_PORT"));
        Connection connection = new AMQConnectionFactory(url).createConnection(env("PEER_USERNAME"), env("PEER_PASSWORD"));
        int code = 0;
        try {
            connection.start();
            Destination queue = new AMQAnyDestination("ADDR:'" + args[1] + "'; {create: always, node: {type: queue}}");
            switch (args[0]) {
                case "publish-all":
                    publishAll(connection, queue);
                    break;
                case "receive":
                    code = receive(connection, queue, Integer.parseInt(args[2]), Long.parseLong(args[3])) ? 0 : 3;
                    break;
                default:
                    throw new IllegalArgumentException(args[0]);
            }
        } finally {
            connection.close();
        }
        System.exit(code);
    }

    private static String env(String name) {
        String value = System.getenv(name);
        if (value == null) {
            throw new IllegalArgumentException("the environment variable " + name + " is not set");
        }
        return value;
    }

    // -- publish-all: keep in step with expected.json ------------------------------------------------------------

    private static void publishAll(Connection connection, Destination queue) throws Exception {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageProducer producer = session.createProducer(queue);
        int defaults = Message.DEFAULT_PRIORITY;

        TextMessage text = session.createTextMessage("Grüße, 世界 \uD83D\uDE80");
        setEveryProperty(text);
        text.setJMSCorrelationID("order-ä-1");
        text.setJMSReplyTo(new AMQAnyDestination("ADDR:'replies'; {create: always, node: {type: queue}}"));
        text.setJMSType("tick");
        producer.send(text, DeliveryMode.PERSISTENT, 7, 600_000);

        producer.send(session.createTextMessage(""), DeliveryMode.NON_PERSISTENT, defaults, 0);

        BytesMessage bytes = session.createBytesMessage();
        byte[] all = new byte[256];
        for (int i = 0; i < all.length; i++) {
            all[i] = (byte) i;
        }
        bytes.writeBytes(all);
        bytes.setJMSCorrelationIDAsBytes(new byte[] {0, (byte) 0xFF, 0x10});
        producer.send(bytes, DeliveryMode.PERSISTENT, 0, 0);

        MapMessage map = session.createMapMessage();
        map.setBoolean("boolean", true);
        map.setByte("byte", (byte) -128);
        map.setShort("short", (short) -32768);
        map.setChar("char", 'é');
        map.setInt("int", Integer.MIN_VALUE);
        map.setLong("long", Long.MIN_VALUE);
        map.setFloat("float", 1.5f);
        map.setDouble("double", Math.PI);
        map.setString("string", "Grüße, 世界 \uD83D\uDE80");
        map.setBytes("bytes", new byte[] {1, 2, (byte) 0xFF});
        map.setString("null", null);
        map.setString("größe", "a key that is not ASCII");
        producer.send(map, DeliveryMode.PERSISTENT, 9, 0);

        StreamMessage stream = session.createStreamMessage();
        stream.writeBoolean(true);
        stream.writeByte((byte) 127);
        stream.writeShort((short) 32767);
        stream.writeChar('é');
        stream.writeInt(Integer.MAX_VALUE);
        stream.writeLong(Long.MAX_VALUE);
        stream.writeFloat(1.5f);
        stream.writeDouble(-0.0);
        stream.writeString("Grüße");
        stream.writeBytes(new byte[] {1, 2, 3});
        stream.writeObject(null);
        producer.send(stream, DeliveryMode.PERSISTENT, defaults, 0);

        producer.send(session.createObjectMessage("an object, Grüße"), DeliveryMode.PERSISTENT, defaults, 0);

        ListMessage list = ((org.apache.qpid.jms.Session) session).createListMessage();
        Map<String, Object> nested = new LinkedHashMap<>();
        nested.put("symbol", "ÄBC");
        nested.put("sizes", List.of(1, 2L));
        for (Object item : new Object[] {true, (byte) 1, (short) 2, 3, 4L, 1.5f, 2.5, "zwölf", nested}) {
            list.add(item);
        }
        producer.send(list, DeliveryMode.PERSISTENT, defaults, 0);

        Message empty = session.createMessage();
        empty.setStringProperty("only", "headers");
        producer.send(empty, DeliveryMode.PERSISTENT, defaults, 0);

        session.commit();
    }

    private static void setEveryProperty(Message message) throws JMSException {
        message.setBooleanProperty("p_boolean", true);
        message.setByteProperty("p_byte", (byte) -1);
        message.setShortProperty("p_short", (short) -2);
        message.setIntProperty("p_int", Integer.MAX_VALUE);
        message.setLongProperty("p_long", Long.MAX_VALUE);
        message.setFloatProperty("p_float", 0.25f);
        message.setDoubleProperty("p_double", 1e300);
        message.setStringProperty("p_string", "Wert \u20AC");
        message.setStringProperty("p_empty", "");
        message.setStringProperty("p_größe", "a name that is not ASCII");
        message.setStringProperty("JMSXGroupID", "group-1");
        message.setIntProperty("JMSXGroupSeq", 5);
    }

    // -- receive -------------------------------------------------------------------------------------------------

    private static boolean receive(Connection connection, Destination queue, int count, long timeoutMs)
            throws Exception {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer consumer = session.createConsumer(queue);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        boolean complete = true;
        for (int i = 0; i < count && complete; i++) {
            Message message = consumer.receive(timeoutMs);
            complete = message != null;
            if (complete) {
                out.println(json(describe(message)));
            }
        }
        session.commit();
        out.flush();
        return complete;
    }

    private static Map<String, Object> describe(Message message) throws Exception {
        Map<String, Object> row = new LinkedHashMap<>();
        Map<String, Object> properties = new LinkedHashMap<>();
        for (Object name : Collections.list((Enumeration<?>) message.getPropertyNames())) {
            properties.put((String) name, typed(message.getObjectProperty((String) name)));
        }
        row.put("body", body(message));
        row.put("properties", properties);
        row.put("other_headers", otherHeaders(message, properties.keySet()));
        row.put("message_id", message.getJMSMessageID());
        row.put("correlation_id", correlationId(message));
        row.put("reply_to", message.getJMSReplyTo() == null ? null : message.getJMSReplyTo().toString());
        row.put("type", message.getJMSType());
        row.put("priority", message.getJMSPriority());
        row.put("persistent", message.getJMSDeliveryMode() == DeliveryMode.PERSISTENT);
        row.put("timestamp", message.getJMSTimestamp());
        row.put("expiration", message.getJMSExpiration());
        row.put("redelivered", message.getJMSRedelivered());
        return row;
    }

    /** Application headers of types that no JMS property has: this client keeps them and does not list their names. */
    @SuppressWarnings("unchecked")
    private static Object otherHeaders(Message message, Set<String> listed) throws Exception {
        AMQMessageDelegate delegate = ((AbstractJMSMessage) message).getDelegate();
        Method all = delegate.getClass().getDeclaredMethod("getApplicationHeaders");
        all.setAccessible(true);
        Map<String, Object> others = new LinkedHashMap<>();
        if (all.invoke(delegate) != null) {
            others.putAll((Map<String, Object>) all.invoke(delegate));
        }
        others.keySet().removeAll(listed);
        return others.isEmpty() ? null : typed(others);
    }

    private static Object correlationId(Message message) throws JMSException {
        byte[] bytes = message.getJMSCorrelationIDAsBytes();
        return bytes == null ? null : hex(bytes);
    }

    private static Object body(Message message) throws Exception {
        // A ListMessage is a StreamMessage and a MapMessage here: the class that says most comes first.
        if (message instanceof ListMessage) {
            return kind("list", typed(((ListMessage) message).asList()));
        }
        if (message instanceof MapMessage) {
            MapMessage map = (MapMessage) message;
            Map<String, Object> entries = new LinkedHashMap<>();
            for (Object name : Collections.list((Enumeration<?>) map.getMapNames())) {
                entries.put((String) name, typed(map.getObject((String) name)));
            }
            return kind("map", entries);
        }
        if (message instanceof StreamMessage) {
            List<Object> items = new ArrayList<>();
            try {
                while (true) {
                    items.add(typed(((StreamMessage) message).readObject()));
                }
            } catch (MessageEOFException end) {
                return kind("stream", items);
            }
        }
        if (message instanceof ObjectMessage) {
            return kind("object", typed(((ObjectMessage) message).getObject()));
        }
        if (message instanceof TextMessage) {
            return kind("text", ((TextMessage) message).getText());
        }
        if (message instanceof BytesMessage) {
            byte[] bytes = new byte[(int) ((BytesMessage) message).getBodyLength()];
            ((BytesMessage) message).readBytes(bytes);
            return kind("bytes", hex(bytes));
        }
        return kind("empty", null);
    }

    private static Map<String, Object> kind(String kind, Object value) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("kind", kind);
        row.put("value", value);
        return row;
    }

    /** A value with the Java type that it came as: {"java": "Integer", "value": 5}. */
    private static Object typed(Object value) {
        Object plain = value;
        if (value instanceof byte[]) {
            plain = hex((byte[]) value);
        } else if (value instanceof Character || value instanceof java.util.UUID) {
            plain = value.toString();
        } else if (value instanceof List) {
            List<Object> items = new ArrayList<>();
            for (Object item : (List<?>) value) {
                items.add(typed(item));
            }
            return items;
        } else if (value instanceof Map) {
            Map<String, Object> entries = new LinkedHashMap<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                entries.put(entry.getKey().toString(), typed(entry.getValue()));
            }
            return entries;
        }
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("java", value == null ? "null" : value.getClass().getSimpleName());
        row.put("value", plain);
        return row;
    }

    // -- text ----------------------------------------------------------------------------------------------------

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }

    private static String json(Object value) {
        if (value == null) {
            return "null";
        }
        if (value instanceof Map) {
            List<String> parts = new ArrayList<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                parts.add(json(entry.getKey()) + ": " + json(entry.getValue()));
            }
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof List) {
            List<String> parts = new ArrayList<>();
            for (Object item : (List<?>) value) {
                parts.add(json(item));
            }
            return "[" + String.join(", ", parts) + "]";
        }
        if (value instanceof Boolean || value instanceof Number) {
            return value.toString(); // NaN and Infinity come as Python's json module reads them
        }
        StringBuilder text = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < 0x20) {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        return text.append('"').toString();
    }
}
