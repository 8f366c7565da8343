import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.CancelCallback;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DeliverCallback;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Method;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.Return;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.ShutdownSignalException;
import com.rabbitmq.client.impl.CredentialsProvider;
import com.rabbitmq.client.impl.CredentialsRefreshService;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Cases of RabbitMQ's Java client. One line for each: "passed NAME", or "failed NAME" and the trace on standard error.
 * A line "restart" asks for the broker to be restarted; a line comes back when that is done.
 */
public final class RabbitClient {
    private static final long WAIT_S = 30;
    private static final CancelCallback NO_CANCEL = tag -> { };
    private static final BasicProperties DURABLE = MessageProperties.PERSISTENT_TEXT_PLAIN;

    private final ConnectionFactory factory = new ConnectionFactory();
    private final BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    private Connection connection;
    private Channel channel;

    private interface Case {
        void run() throws Exception;
    }

    private interface Refused {
        void run() throws IOException;
    }

    private RabbitClient() {
    }

    public static void main(String[] args) throws Exception {
        new RabbitClient().runAll();
        System.exit(0);
    }

    private void runAll() throws Exception {
        factory.setHost(System.getenv("PEER_HOST"));
        factory.setPort(Integer.parseInt(System.getenv("PEER_PORT")));
        factory.setUsername(System.getenv("PEER_USERNAME"));
        factory.setPassword(System.getenv("PEER_PASSWORD"));
        factory.setRequestedHeartbeat(1);
        factory.setNetworkRecoveryInterval(100);
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("confirms", this::confirms);
        cases.put("returns", this::returns);
        cases.put("transactions", this::transactions);
        cases.put("get and nack", this::getAndNack);
        cases.put("recover", this::recover);
        cases.put("prefetch", this::prefetch);
        cases.put("consumer cancel notification", this::cancelNotification);
        cases.put("priorities of messages", this::messagePriorities);
        cases.put("priorities of consumers", this::consumerPriorities);
        cases.put("exchange bindings", this::exchangeBindings);
        cases.put("alternate exchange", this::alternateExchange);
        cases.put("dead letters", this::deadLetters);
        cases.put("counts", this::counts);
        cases.put("errors of a channel", this::errors);
        cases.put("all types of headers", this::headers);
        cases.put("large and empty bodies", this::bodies);
        cases.put("many channels", this::manyChannels);
        cases.put("requests with direct replies", this::requests);
        cases.put("update-secret", this::updateSecret);
        cases.put("recovery of connection and topology", this::recovery);
        connection = factory.newConnection("cases");
        for (Map.Entry<String, Case> each : cases.entrySet()) {
            channel = connection.createChannel();
            try {
                each.getValue().run();
                channel.abort(); // a case may have had it closed
                System.out.println("passed " + each.getKey());
            } catch (Throwable error) {
                error.printStackTrace();
                System.out.println("failed " + each.getKey());
            }
        }
        check(connection.isOpen(), true); // with a heartbeat of 1 s
        connection.close();
    }

    // -- helpers

    private static void check(Object found, Object expected) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    private void publish(String exchange, String key, BasicProperties properties, String... bodies) throws IOException {
        for (String body : bodies) {
            channel.basicPublish(exchange, key, properties, body.getBytes(StandardCharsets.UTF_8));
        }
    }

    private List<String> drained(String queue) throws IOException {
        List<String> found = new ArrayList<>();
        for (GetResponse each = channel.basicGet(queue, true); each != null; each = channel.basicGet(queue, true)) {
            found.add(new String(each.getBody(), StandardCharsets.UTF_8));
        }
        return found;
    }

    private String newQueue(Map<String, Object> arguments) throws IOException {
        return channel.queueDeclare("", false, true, false, arguments).getQueue();
    }

    private static String text(Delivery delivery) {
        if (delivery == null) {
            throw new AssertionError("no message came");
        }
        return new String(delivery.getBody(), StandardCharsets.UTF_8);
    }

    private static DeliverCallback into(BlockingQueue<Delivery> deliveries) {
        return (tag, delivery) -> deliveries.add(delivery);
    }

    private static String next(BlockingQueue<Delivery> deliveries) throws InterruptedException {
        return text(deliveries.poll(WAIT_S, TimeUnit.SECONDS));
    }

    private static void checkRefused(int code, Refused call) {
        try {
            call.run();
        } catch (IOException | AlreadyClosedException error) {
            Throwable cause = error instanceof AlreadyClosedException ? error : error.getCause();
            Method reason = ((ShutdownSignalException) cause).getReason();
            if (reason instanceof AMQP.Channel.Close) {
                check(((AMQP.Channel.Close) reason).getReplyCode(), code);
            } else {
                check(((AMQP.Connection.Close) reason).getReplyCode(), code);
            }
            return;
        }
        throw new AssertionError("nothing was refused");
    }

    // -- cases

    private void confirms() throws Exception {
        String queue = newQueue(null);
        ConcurrentSkipListSet<Long> open = new ConcurrentSkipListSet<>();
        CountDownLatch confirmed = new CountDownLatch(1);
        channel.confirmSelect();
        for (long number = 1; number <= 500; number++) {
            open.add(number);
        }
        channel.addConfirmListener((tag, multiple) -> {
            if (multiple) {
                open.headSet(tag, true).clear();
            } else {
                open.remove(tag);
            }
            if (open.isEmpty()) {
                confirmed.countDown();
            }
        }, (tag, multiple) -> { });
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 500; number++) {
            check(channel.getNextPublishSeqNo(), number + 1L);
            publish("", queue, null, "m" + number);
            sent.add("m" + number);
        }
        check(confirmed.await(WAIT_S, TimeUnit.SECONDS), true);
        channel.waitForConfirmsOrDie(WAIT_S * 1000);
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicQos(20);
        channel.basicConsume(queue, false, into(deliveries), NO_CANCEL);
        List<String> found = new ArrayList<>();
        for (int number = 0; number < 500; number++) {
            Delivery each = deliveries.poll(WAIT_S, TimeUnit.SECONDS);
            found.add(text(each));
            if (number % 10 == 9) {
                channel.basicAck(each.getEnvelope().getDeliveryTag(), true);
            }
        }
        check(found, sent);

        String full = newQueue(Map.of("x-max-length", 1, "x-overflow", "reject-publish"));
        publish("", full, null, "1", "2");
        check(channel.waitForConfirms(WAIT_S * 1000), false);
    }

    private void returns() throws Exception {
        BlockingQueue<Return> returned = new LinkedBlockingQueue<>();
        channel.addReturnListener(returned::add);
        channel.confirmSelect();
        channel.basicPublish("amq.direct", "nowhere", true, DURABLE, "lost".getBytes());
        channel.waitForConfirmsOrDie(WAIT_S * 1000);
        Return back = returned.poll(WAIT_S, TimeUnit.SECONDS);
        check(back.getReplyCode(), 312);
        check(back.getReplyText(), "NO_ROUTE");
        check(back.getExchange() + " " + back.getRoutingKey(), "amq.direct nowhere");
        check(new String(back.getBody()), "lost");
        check(back.getProperties().getDeliveryMode(), 2);
    }

    private void transactions() throws Exception {
        String queue = newQueue(null);
        channel.txSelect();
        publish("", queue, null, "1");
        channel.txRollback();
        publish("", queue, null, "2", "3");
        channel.txCommit();
        GetResponse first = channel.basicGet(queue, false);
        check(new String(first.getBody()), "2");
        channel.basicAck(first.getEnvelope().getDeliveryTag(), false);
        channel.txRollback();
        channel.basicAck(first.getEnvelope().getDeliveryTag(), false);
        channel.txCommit();
        check(drained(queue), List.of("3"));
    }

    private void getAndNack() throws Exception {
        String queue = newQueue(null);
        publish("", queue, null, "1", "2", "3");
        GetResponse first = channel.basicGet(queue, false);
        check(first.getMessageCount(), 2);
        check(first.getEnvelope().isRedeliver(), false);
        channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
        GetResponse again = channel.basicGet(queue, false);
        check(new String(again.getBody()), "1");
        check(again.getEnvelope().isRedeliver(), true);
        channel.basicReject(again.getEnvelope().getDeliveryTag(), false);
        check(drained(queue), List.of("2", "3"));
        check(channel.basicGet(queue, true), null);
    }

    private void recover() throws Exception {
        String queue = newQueue(null);
        publish("", queue, null, "1", "2");
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, false, into(deliveries), NO_CANCEL);
        check(next(deliveries) + next(deliveries), "12");
        channel.basicRecover(true);
        check(next(deliveries) + next(deliveries), "12");
    }

    private void prefetch() throws Exception {
        String queue = newQueue(null);
        publish("", queue, null, "1", "2", "3", "4");
        BlockingQueue<Delivery> first = new LinkedBlockingQueue<>();
        BlockingQueue<Delivery> second = new LinkedBlockingQueue<>();
        channel.basicQos(1, false);
        channel.basicConsume(queue, false, into(first), NO_CANCEL);
        channel.basicQos(2, false);
        String tag = channel.basicConsume(queue, false, into(second), NO_CANCEL);
        check(next(first), "1");
        check(next(second) + next(second), "23");
        check(channel.messageCount(queue), 1L);
        channel.basicCancel(tag);
        channel.basicQos(4, true);
        channel.basicConsume(queue, false, into(second), NO_CANCEL);
        check(next(second), "4");
    }

    private void cancelNotification() throws Exception {
        BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
        String queue = newQueue(null);
        String tag = channel.basicConsume(queue, true, (t, d) -> { }, cancelled::add);
        Channel other = connection.createChannel();
        other.queueDelete(queue);
        other.close();
        check(cancelled.poll(WAIT_S, TimeUnit.SECONDS), tag);
    }

    private void messagePriorities() throws Exception {
        String queue = newQueue(Map.of("x-max-priority", 9));
        for (int priority : new int[] {1, 9, 0, 5}) {
            publish("", queue, new BasicProperties.Builder().priority(priority).build(), "p" + priority);
        }
        check(drained(queue), List.of("p9", "p5", "p1", "p0"));
    }

    private void consumerPriorities() throws Exception {
        String queue = newQueue(null);
        BlockingQueue<Delivery> low = new LinkedBlockingQueue<>();
        BlockingQueue<Delivery> high = new LinkedBlockingQueue<>();
        channel.basicQos(1);
        channel.basicConsume(queue, false, Map.of("x-priority", -1), into(low), NO_CANCEL);
        channel.basicConsume(queue, false, Map.of("x-priority", 10), into(high), NO_CANCEL);
        publish("", queue, null, "1", "2");
        check(next(high), "1");
        check(next(low), "2");
    }

    private void exchangeBindings() throws Exception {
        channel.exchangeDeclare("j.topic", BuiltinExchangeType.TOPIC, false, true, null);
        channel.exchangeDeclare("j.headers", BuiltinExchangeType.HEADERS, false, true, false, null);
        String queue = newQueue(null);
        channel.exchangeBind("j.headers", "j.topic", "a.#");
        channel.queueBind(queue, "j.headers", "", Map.of("x-match", "all", "kind", "x", "n", 1));
        BasicProperties.Builder made = new BasicProperties.Builder();
        publish("j.topic", "a.b", made.headers(Map.of("kind", "x", "n", 1)).build(), "both");
        publish("j.topic", "b.b", made.headers(Map.of("kind", "x", "n", 1)).build(), "headers only");
        publish("j.topic", "a", made.headers(Map.of("kind", "x")).build(), "key only");
        check(drained(queue), List.of("both"));
        channel.exchangeUnbind("j.headers", "j.topic", "a.#"); // j.topic is deleted with its last binding
        checkRefused(404, () -> channel.exchangeDeclarePassive("j.topic"));
    }

    private void alternateExchange() throws Exception {
        channel.exchangeDeclare("j.rest", BuiltinExchangeType.FANOUT);
        channel.exchangeDeclare("j.first", "direct", false, false, Map.of("alternate-exchange", "j.rest"));
        String queue = newQueue(null);
        channel.queueBind(queue, "j.rest", "");
        publish("j.first", "nothing is bound", null, "rest");
        check(drained(queue), List.of("rest"));
        channel.exchangeDelete("j.first");
        checkRefused(406, () -> channel.exchangeDelete("j.rest", true));
        channel = connection.createChannel();
        channel.exchangeDelete("j.rest");
    }

    private void deadLetters() throws Exception {
        String dead = newQueue(null);
        String queue = newQueue(Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
        publish("", queue, new BasicProperties.Builder().expiration("1").build(), "expired");
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(dead, true, into(deliveries), NO_CANCEL);
        Delivery found = deliveries.poll(WAIT_S, TimeUnit.SECONDS);
        check(text(found), "expired");
        Map<?, ?> death = (Map<?, ?>) ((List<?>) found.getProperties().getHeaders().get("x-death")).get(0);
        check(death.get("reason").toString() + death.get("count") + death.get("queue"), "expired1" + queue);
        check(death.get("time") instanceof Date, true);
        check(found.getProperties().getHeaders().get("x-first-death-queue").toString(), queue);
    }

    private void counts() throws Exception {
        String queue = newQueue(null);
        publish("", queue, null, "1", "2", "3");
        channel.basicConsume(newQueue(null), true, (t, d) -> { }, NO_CANCEL);
        AMQP.Queue.DeclareOk found = channel.queueDeclarePassive(queue);
        check(found.getMessageCount() + " " + found.getConsumerCount(), "3 0");
        check(channel.queuePurge(queue).getMessageCount(), 3);
        String tag = channel.basicConsume(queue, true, (t, d) -> { }, NO_CANCEL);
        check(channel.consumerCount(queue), 1L);
        channel.basicCancel(tag);
        check(channel.queueDelete(queue, true, true).getMessageCount(), 0);
    }

    private void errors() throws Exception {
        checkRefused(404, () -> channel.queueDeclarePassive("missing"));
        channel = connection.createChannel();
        checkRefused(404, () -> channel.basicConsume("missing", (t, d) -> { }, NO_CANCEL));
        channel = connection.createChannel();
        String queue = newQueue(null);
        checkRefused(406, () -> channel.queueDeclare(queue, false, true, true, null));
        channel = connection.createChannel();
        CountDownLatch closed = new CountDownLatch(1);
        channel.addShutdownListener(cause -> closed.countDown());
        publish("missing", "", null, "1"); // the answer comes without a question
        check(closed.await(WAIT_S, TimeUnit.SECONDS), true);
        checkRefused(404, () -> publish("missing", "", null, "2"));
        channel = connection.createChannel();
        channel.basicConsume(queue, false, "t", false, true, null, (t, d) -> { }, NO_CANCEL, (t, cause) -> { });
        Channel other = connection.createChannel();
        checkRefused(403, () -> other.basicConsume(queue, (t, d) -> { }, NO_CANCEL));
        ConnectionFactory plain = factory.clone();
        plain.setAutomaticRecoveryEnabled(false);
        Connection stranger = plain.newConnection("stranger");
        Channel outside = stranger.createChannel();
        checkRefused(405, () -> outside.basicConsume(queue, (t, d) -> { }, NO_CANCEL));
        Channel last = stranger.createChannel();
        checkRefused(540, () -> last.basicQos(1, 1, false)); // prefetch-size
        check(stranger.isOpen(), false);
    }

    private void headers() throws Exception {
        String queue = newQueue(null);
        Map<String, Object> headers = new HashMap<>();
        headers.put("boolean", true);
        headers.put("byte", (byte) -1);
        headers.put("short", (short) -2);
        headers.put("int", -3);
        headers.put("long", Long.MIN_VALUE);
        headers.put("float", 1.5f);
        headers.put("double", -0.5);
        headers.put("decimal", new BigDecimal("12.34"));
        headers.put("date", new Date(1_700_000_000_000L));
        headers.put("null", null);
        headers.put("list", List.of(1, List.of(2L), Map.of("a", true)));
        BasicProperties properties = new BasicProperties.Builder()
                .contentType("c").contentEncoding("e").headers(headers).deliveryMode(1).priority(255)
                .correlationId("i").replyTo("r").expiration("100000").messageId("m")
                .timestamp(new Date(1_700_000_000_000L)).type("t").userId("guest").appId("a").clusterId("cl").build();
        publish("", queue, properties, "x");
        check(channel.basicGet(queue, true).getProps(), properties);
    }

    private void bodies() throws Exception {
        String queue = newQueue(null);
        for (int size : new int[] {0, 1, 131_064, 131_065, 3_000_000}) {
            channel.basicPublish("", queue, null, new byte[size]);
            check(channel.basicGet(queue, true).getBody().length, size);
        }
    }

    private void manyChannels() throws Exception {
        check(connection.getChannelMax(), 2047);
        List<Channel> all = new ArrayList<>();
        for (int number = 0; number < 200; number++) {
            all.add(connection.createChannel());
        }
        for (Channel each : all) {
            each.close();
        }
        Channel again = connection.createChannel(1000);
        again.close();
        connection.createChannel(1000).close();
    }

    private void requests() throws Exception {
        String queue = newQueue(null);
        Channel serving = connection.createChannel();
        serving.basicConsume(queue, true, (tag, request) -> {
            BasicProperties asked = request.getProperties();
            BasicProperties answer = new BasicProperties.Builder().correlationId(asked.getCorrelationId()).build();
            serving.basicPublish("", asked.getReplyTo(), answer, text(request).toUpperCase().getBytes());
        }, NO_CANCEL);
        RpcClient client = new RpcClient(
                new RpcClientParams().channel(channel).exchange("").routingKey(queue).timeout((int) WAIT_S * 1000));
        check(client.stringCall("first"), "FIRST"); // its reply-to is amq.rabbitmq.reply-to
        check(client.stringCall("second"), "SECOND");
        client.close();
        serving.close();
    }

    private void updateSecret() throws Exception {
        List<Callable<Boolean>> refreshes = new ArrayList<>();
        ConnectionFactory other = factory.clone();
        other.setAutomaticRecoveryEnabled(false);
        other.setCredentialsProvider(new CredentialsProvider() {
            @Override
            public String getUsername() {
                return factory.getUsername();
            }

            @Override
            public String getPassword() {
                return factory.getPassword();
            }

            @Override
            public Duration getTimeBeforeExpiration() {
                return Duration.ofHours(1);
            }
        });
        other.setCredentialsRefreshService(new CredentialsRefreshService() {
            @Override
            public String register(CredentialsProvider provider, Callable<Boolean> refresh) {
                refreshes.add(refresh);
                return "the only one";
            }

            @Override
            public void unregister(CredentialsProvider provider, String id) {
            }

            @Override
            public boolean isApproachingExpiration(Duration left) {
                return false;
            }
        });
        Connection lasting = other.newConnection("lasting");
        check(refreshes.get(0).call(), true); // connection.update-secret
        lasting.createChannel().queueDelete("nothing");
        lasting.close();
    }

    private void recovery() throws Exception {
        CountDownLatch recovered = new CountDownLatch(1);
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recoverable) {
                recovered.countDown();
            }

            @Override
            public void handleRecoveryStarted(Recoverable recoverable) {
            }
        });
        channel.exchangeDeclare("j.lasting", "fanout", true);
        channel.exchangeDeclare("j.passing", "direct");
        channel.queueDeclare("j.stored", true, false, false, Map.of("x-max-length", 100));
        channel.queueBind("j.stored", "j.lasting", "");
        String own = newQueue(null);
        channel.queueBind(own, "j.passing", "key");
        channel.confirmSelect();
        publish("j.lasting", "", DURABLE, "kept 1", "kept 2");
        publish("j.lasting", "", null, "lost");
        channel.waitForConfirmsOrDie(WAIT_S * 1000);
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(own, true, into(deliveries), NO_CANCEL);
        BlockingQueue<Delivery> stored = new LinkedBlockingQueue<>();
        channel.basicConsume("j.stored", false, into(stored), NO_CANCEL);
        check(next(stored) + next(stored) + next(stored), "kept 1kept 2lost"); // held when the broker ends

        System.out.println("restart");
        check(orders.readLine(), "restarted");
        check(recovered.await(WAIT_S, TimeUnit.SECONDS), true);
        Delivery first = stored.poll(WAIT_S, TimeUnit.SECONDS);
        Delivery second = stored.poll(WAIT_S, TimeUnit.SECONDS);
        check(text(first) + text(second), "kept 1kept 2");
        check(first.getEnvelope().isRedeliver(), true);
        channel.basicAck(second.getEnvelope().getDeliveryTag(), true);
        publish("j.passing", "key", null, "again");
        check(next(deliveries), "again");
        publish("j.lasting", "", DURABLE, "new");
        channel.waitForConfirmsOrDie(WAIT_S * 1000);
        check(next(stored), "new");
        check(new TreeSet<>(List.of(stored.size(), deliveries.size())), new TreeSet<>(List.of(0)));
    }
}
