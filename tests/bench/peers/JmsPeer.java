import java.nio.file.Path;
import java.util.Locale;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.ConnectionFactory;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.Session;

import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.LocalOutputFile;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.io.api.RecordConsumer;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.MessageTypeParser;

/**
 * A careful consumer with a JMS client of Apache Qpid and Parquet's own writer.
 *
 * <pre>
 * JmsPeer FACTORY URL KEY WARM-QUEUE WARM-COUNT WARM-DIRECTORY QUEUE COUNT DIRECTORY
 * </pre>
 *
 * FACTORY is the class of the connection factory, URL has its prefetch, KEY is the property that has the routing key.
 * Login: PEER_USERNAME, PEER_PASSWORD. The warm queue is drained first, since Java compiles what it runs often. Every
 * 2,500 messages become a file, half of the prefetch, so that the broker always has room to send; then they are
 * acknowledged together. Messages go into the file one by one, without rows in between.
 */
public final class JmsPeer {
    private static final int FILE_MESSAGES = 2500;
    private static final long WAIT_MS = 60_000;
    private static final MessageType SCHEMA = MessageTypeParser.parseMessageType(
            "message row { optional binary body; optional binary routing_key (STRING);"
                    + " optional binary message_id (STRING); optional int64 timestamp (TIMESTAMP(MICROS,true));"
                    + " optional group application_headers { optional binary symbol (STRING); optional int32 qty;"
                    + " optional double price; } }");

    private JmsPeer() {
    }

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory =
                (ConnectionFactory) Class.forName(args[0]).getConstructor(String.class).newInstance(args[1]);
        Connection connection =
                factory.createConnection(System.getenv("PEER_USERNAME"), System.getenv("PEER_PASSWORD"));
        connection.start();
        drain(connection, args[2], args[3], Integer.parseInt(args[4]), Path.of(args[5]));
        long begin = System.nanoTime();
        double processor = processorSeconds();
        drain(connection, args[2], args[6], Integer.parseInt(args[7]), Path.of(args[8]));
        System.out.printf(Locale.ROOT, "{\"seconds\": %.6f, \"processor_s\": %.6f}%n",
                (System.nanoTime() - begin) / 1e9, processorSeconds() - processor);
        connection.close();
        System.exit(0);
    }

    private static void drain(Connection connection, String key, String queue, int count, Path directory)
            throws Exception {
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        for (int done = 0; done < count;) {
            int end = Math.min(done + FILE_MESSAGES, count);
            Message last = null;
            Path file = directory.resolve(String.format("%09d.parquet", end));
            try (ParquetWriter<Message> writer = new Files(new LocalOutputFile(file), key).build()) {
                for (; done < end; done++) {
                    last = consumer.receive(WAIT_MS);
                    if (last == null) {
                        throw new IllegalStateException("only " + done + " of " + count + " messages came");
                    }
                    writer.write(last);
                }
            }
            last.acknowledge(); // and all before it
        }
        session.close();
    }

    /** Of all threads of this process. */
    private static double processorSeconds() {
        return ((com.sun.management.OperatingSystemMXBean)
                java.lang.management.ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private static final class Files extends ParquetWriter.Builder<Message, Files> {
        private final String key;

        Files(OutputFile file, String key) {
            super(file);
            this.key = key;
            withCompressionCodec(CompressionCodecName.SNAPPY);
        }

        @Override
        protected Files self() {
            return this;
        }

        @Override
        protected WriteSupport<Message> getWriteSupport(Configuration configuration) {
            return new Rows(key);
        }
    }

    /** Writes messages as rows. */
    private static final class Rows extends WriteSupport<Message> {
        private final String key;
        private RecordConsumer out;

        Rows(String key) {
            this.key = key;
        }

        @Override
        public WriteContext init(Configuration configuration) {
            return new WriteContext(SCHEMA, java.util.Map.of());
        }

        @Override
        public void prepareForWrite(RecordConsumer consumer) {
            out = consumer;
        }

        @Override
        public void write(Message message) {
            try {
                BytesMessage bytes = (BytesMessage) message;
                byte[] body = new byte[(int) bytes.getBodyLength()];
                bytes.readBytes(body);
                out.startMessage();
                binary("body", 0, Binary.fromConstantByteArray(body));
                binary("routing_key", 1, Binary.fromString(message.getStringProperty(key)));
                binary("message_id", 2, Binary.fromString(message.getJMSMessageID().substring("ID:".length())));
                out.startField("timestamp", 3);
                out.addLong(message.getJMSTimestamp() * 1000);
                out.endField("timestamp", 3);
                out.startField("application_headers", 4);
                out.startGroup();
                binary("symbol", 0, Binary.fromString(message.getStringProperty("symbol")));
                out.startField("qty", 1);
                out.addInteger(message.getIntProperty("qty"));
                out.endField("qty", 1);
                out.startField("price", 2);
                out.addDouble(message.getDoubleProperty("price"));
                out.endField("price", 2);
                out.endGroup();
                out.endField("application_headers", 4);
                out.endMessage();
            } catch (JMSException error) {
                throw new IllegalStateException(error);
            }
        }

        private void binary(String name, int index, Binary value) {
            out.startField(name, index);
            out.addBinary(value);
            out.endField(name, index);
        }
    }
}
