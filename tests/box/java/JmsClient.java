import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.QueueBrowser;
import javax.jms.Session;
import javax.jms.TemporaryQueue;
import javax.jms.TemporaryTopic;
import javax.jms.TextMessage;
import javax.jms.Topic;
import javax.jms.TopicSubscriber;
import javax.jms.XAConnection;
import javax.jms.XASession;

import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

import org.apache.qpid.client.AMQConnectionFactory;
import org.apache.qpid.client.AMQSession_0_10;

/**
 * Cases of Apache Qpid's JMS client for 0-10. One line for each: "passed NAME", or "failed NAME" and the trace on
 * standard error. A line "restart" asks for the broker to be restarted; a line comes back when that is done.
 */
public final class JmsClient {
    private static final long WAIT_MS = 30_000;

    private final BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    private Connection connection;
    private Session session;
    private int names;

    private interface Case {
        void run() throws Exception;
    }

    private JmsClient() {
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("qpid.amqp.version", "0-10");
        new JmsClient().runAll();
        System.exit(0);
    }

    private void runAll() throws Exception {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("queue by address", this::queueByAddress);
        cases.put("queue by binding URL", this::queueByBindingUrl);
        cases.put("topic by address", this::topicByAddress);
        cases.put("topic by binding URL", this::topicByBindingUrl);
        cases.put("address with bindings", this::addressWithBindings);
        cases.put("address that must exist", this::missingAddress);
        cases.put("transactions", this::transactions);
        cases.put("client-ack and recover", this::clientAck);
        cases.put("dups-ok and no-ack", this::lazyAck);
        cases.put("listener", this::listener);
        cases.put("browser", this::browser);
        cases.put("temporary queue and reply-to", this::replyTo);
        cases.put("temporary topic", this::temporaryTopic);
        cases.put("durable subscription", this::durableSubscription);
        cases.put("selectors", this::selectors);
        cases.put("selectors of headers", this::headerSelectors);
        cases.put("selectors of topics", this::topicSelectors);
        cases.put("priorities", this::priorities);
        cases.put("time to live", this::timeToLive);
        cases.put("exclusive subscription", this::exclusive);
        cases.put("large messages and prefetch", this::largeMessages);
        cases.put("synchronous sends to a full queue", this::fullQueue);
        cases.put("unroutable messages", this::unroutable);
        cases.put("many sessions", this::manySessions);
        cases.put("XA", this::distributed);
        cases.put("failover", this::failover);
        cases.put("XA, with the broker restarted", this::distributedOverRestart);
        connection = connect("");
        for (Map.Entry<String, Case> each : cases.entrySet()) {
            try {
                session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                each.getValue().run();
                session.close();
                System.out.println("passed " + each.getKey());
            } catch (Throwable error) {
                error.printStackTrace();
                for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                    if (cause instanceof JMSException && ((JMSException) cause).getLinkedException() != null) {
                        ((JMSException) cause).getLinkedException().printStackTrace();
                    }
                }
                System.out.println("failed " + each.getKey());
                connection.close(); // its session may be closed, and a listener with it
                connection = connect("");
            }
        }
        connection.close();
    }

    // -- helpers

    private static String url(String options) {
        return String.format(
                "amqp://:@jms/%s?brokerlist='tcp://%s:%s?retries='100'&connectdelay='100'&heartbeat='5''"
                        + "&failover='singlebroker'%s",
                System.getenv("PEER_VHOST").replace("/", ""), System.getenv("PEER_HOST"), System.getenv("PEER_PORT"), options);
    }

    private static Connection connect(String options) throws Exception {
        Connection made = new AMQConnectionFactory(url(options))
                .createConnection(System.getenv("PEER_USERNAME"), System.getenv("PEER_PASSWORD"));
        made.start();
        return made;
    }

    private static void check(Object found, Object expected) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    private Queue newQueue(String options) throws JMSException {
        names++;
        return session.createQueue("ADDR:jms-" + names + "; {create: always, node: {type: queue" + options + "}}");
    }

    private static void send(Session session, Destination to, String... texts) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (String text : texts) {
            producer.send(session.createTextMessage(text));
        }
        producer.close();
    }

    private static String next(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(WAIT_MS);
        if (message == null) {
            throw new AssertionError("no message came");
        }
        return ((TextMessage) message).getText();
    }

    private List<String> drained(Destination from) throws JMSException {
        MessageConsumer consumer = session.createConsumer(from);
        List<String> found = new ArrayList<>();
        for (Message each = consumer.receiveNoWait(); each != null; each = consumer.receiveNoWait()) {
            found.add(((TextMessage) each).getText());
        }
        consumer.close();
        return found;
    }

    // -- cases

    private void queueByAddress() throws Exception {
        Queue queue = newQueue("");
        MessageProducer producer = session.createProducer(queue);
        TextMessage sent = session.createTextMessage("text ä");
        sent.setStringProperty("name", "value");
        sent.setLongProperty("number", 5);
        sent.setBooleanProperty("flag", true);
        sent.setJMSCorrelationID("correlated");
        sent.setJMSType("type");
        producer.send(sent);
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeBytes(new byte[] {0, -1});
        producer.send(bytes);
        MapMessage map = session.createMapMessage();
        map.setInt("five", 5);
        producer.send(map);
        MessageConsumer consumer = session.createConsumer(queue);
        TextMessage text = (TextMessage) consumer.receive(WAIT_MS);
        check(text.getText(), "text ä");
        check(text.getStringProperty("name") + text.getLongProperty("number") + text.getBooleanProperty("flag"),
                "value5true");
        check(text.getJMSCorrelationID() + text.getJMSType() + text.getJMSRedelivered(), "correlatedtypefalse");
        check(text.getJMSMessageID(), sent.getJMSMessageID());
        check(text.getJMSDeliveryMode(), DeliveryMode.PERSISTENT);
        check(((BytesMessage) consumer.receive(WAIT_MS)).getBodyLength(), 2L);
        check(((MapMessage) consumer.receive(WAIT_MS)).getInt("five"), 5);
        check(consumer.receiveNoWait(), null);
        consumer.close();
        Queue deleted = session.createQueue("ADDR:jms-passing; {create: always, delete: always, node: {type: queue}}");
        send(session, deleted, "1");
        check(drained(session.createQueue("ADDR:jms-missing; {create: always, delete: receiver}")), List.of());
    }

    private void queueByBindingUrl() throws Exception {
        Queue queue = session.createQueue("BURL:direct://amq.direct//jms-burl?durable='true'&routingkey='a-key'");
        MessageConsumer consumer = session.createConsumer(queue);
        send(session, queue, "1", "2");
        check(next(consumer) + next(consumer), "12");
        consumer.close();
        Queue plain = session.createQueue("BURL:direct:////jms-default?autodelete='true'&exclusive='true'");
        consumer = session.createConsumer(plain);
        send(session, plain, "3");
        check(next(consumer), "3");
        consumer.close();
    }

    private void topicByAddress() throws Exception {
        MessageConsumer all = session.createConsumer(session.createTopic("ADDR:amq.topic/jms.#"));
        MessageConsumer one = session.createConsumer(session.createTopic("ADDR:amq.topic/jms.one"));
        send(session, session.createTopic("ADDR:amq.topic/jms.one"), "1");
        send(session, session.createTopic("ADDR:amq.topic/jms.two.x"), "2");
        check(next(all) + next(all) + next(one), "121");
        check(one.receiveNoWait(), null);
        MessageConsumer fan = session.createConsumer(session.createTopic(
                "ADDR:jms-fan; {create: always, delete: always, node: {type: topic, x-declare: {type: fanout}}}"));
        send(session, session.createTopic("ADDR:jms-fan/any"), "3");
        check(next(fan), "3");
        fan.close();
    }

    private void topicByBindingUrl() throws Exception {
        Topic topic = session.createTopic("BURL:topic://amq.topic/jms.burl/?routingkey='jms.burl'");
        MessageConsumer first = session.createConsumer(topic);
        MessageConsumer second = session.createConsumer(topic);
        send(session, topic, "1");
        check(next(first) + next(second), "11");
        Topic fanout = session.createTopic("BURL:fanout://amq.fanout//");
        first = session.createConsumer(fanout);
        send(session, fanout, "2");
        check(next(first), "2");
    }

    private void addressWithBindings() throws Exception {
        Queue queue = session.createQueue("ADDR:jms-bound; {create: always, delete: receiver, node: {type: queue, "
                + "durable: true, x-declare: {arguments: {'qpid.max_count': 10, 'qpid.policy_type': ring}}, "
                + "x-bindings: [{exchange: 'amq.direct', key: jms-key}, "
                + "{exchange: 'amq.match', key: m, arguments: {x-match: all, colour: red}}]}}");
        MessageConsumer consumer = session.createConsumer(queue);
        send(session, session.createQueue("ADDR:amq.direct/jms-key"), "direct");
        MessageProducer producer = session.createProducer(session.createQueue("ADDR:amq.match/m"));
        for (String colour : new String[] {"blue", "red"}) {
            Message message = session.createTextMessage(colour);
            message.setStringProperty("colour", colour);
            producer.send(message);
        }
        check(next(consumer) + next(consumer), "directred");
        consumer.close();
        Queue link = session.createQueue("ADDR:amq.topic/jms.link.*; {link: {name: jms-link, x-declare: {auto-delete: true}}}");
        consumer = session.createConsumer(link);
        send(session, session.createTopic("ADDR:amq.topic/jms.link.x"), "linked");
        check(next(consumer), "linked");
        consumer.close();
    }

    private void missingAddress() throws Exception {
        for (String address : new String[] {"ADDR:jms-none", "ADDR:amq.fanout; {assert: always, node: {type: queue}}"}) {
            try {
                session.createConsumer(session.createQueue(address));
            } catch (JMSException error) {
                continue; // the client asks before it subscribes: the session goes on
            }
            throw new AssertionError(address + " was found");
        }
        send(session, newQueue(""), "1");
    }

    private void transactions() throws Exception {
        Queue from = newQueue("");
        Queue to = newQueue("");
        send(session, from, "1", "2", "3");
        Session transacted = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer consumer = transacted.createConsumer(from);
        check(next(consumer) + next(consumer), "12");
        send(transacted, to, "undone");
        transacted.rollback();
        Message again = consumer.receive(WAIT_MS);
        check(((TextMessage) again).getText() + again.getJMSRedelivered(), "1true");
        send(transacted, to, "done");
        check(drained(to), List.of());
        transacted.commit();
        check(drained(to), List.of("done"));
        transacted.close();
        check(drained(from), List.of("2", "3"));
    }

    private void clientAck() throws Exception {
        Queue queue = newQueue("");
        send(session, queue, "1", "2", "3");
        Session other = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = other.createConsumer(queue);
        Message first = consumer.receive(WAIT_MS);
        first.acknowledge();
        check(next(consumer), "2");
        other.recover();
        Message again = consumer.receive(WAIT_MS);
        check(((TextMessage) again).getText() + again.getJMSRedelivered(), "2true");
        other.close();
        check(drained(queue), List.of("2", "3"));
    }

    private void lazyAck() throws Exception {
        Queue queue = newQueue("");
        send(session, queue, "1", "2", "3");
        Session dups = connection.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        MessageConsumer consumer = dups.createConsumer(queue);
        check(next(consumer) + next(consumer) + next(consumer), "123");
        dups.close();
        check(drained(queue), List.of());
        Session none = connection.createSession(false, org.apache.qpid.jms.Session.NO_ACKNOWLEDGE);
        send(session, queue, "4");
        check(next(none.createConsumer(queue)), "4");
        none.close();
        check(drained(queue), List.of());
    }

    private void listener() throws Exception {
        Queue queue = newQueue("");
        BlockingQueue<Message> found = new LinkedBlockingQueue<>();
        MessageConsumer consumer = session.createConsumer(queue);
        consumer.setMessageListener(found::add);
        Session sending = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 1200; number++) { // more than the prefetch
            sent.add("m" + number);
        }
        send(sending, queue, sent.toArray(new String[0]));
        List<String> texts = new ArrayList<>();
        for (int number = 0; number < 1200; number++) {
            texts.add(((TextMessage) found.poll(WAIT_MS, TimeUnit.MILLISECONDS)).getText());
        }
        check(texts, sent);
        consumer.close();
        sending.close();
        check(drained(queue), List.of());
    }

    private void browser() throws Exception {
        Queue queue = newQueue("");
        send(session, queue, "1", "2", "3");
        QueueBrowser browser = session.createBrowser(queue);
        for (int time = 0; time < 2; time++) {
            List<String> found = new ArrayList<>();
            for (Object each : Collections.list(browser.getEnumeration())) {
                found.add(((TextMessage) each).getText());
            }
            check(found, List.of("1", "2", "3"));
        }
        browser.close();
        String name = queue.getQueueName();
        MessageConsumer reading = session.createConsumer(session.createQueue("ADDR:" + name + "; {mode: browse}"));
        check(next(reading), "1");
        reading.close();
        check(drained(queue), List.of("1", "2", "3"));
    }

    private void replyTo() throws Exception {
        Queue queue = newQueue("");
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer waiting = session.createConsumer(replies);
        TextMessage request = session.createTextMessage("request");
        request.setJMSReplyTo(replies);
        session.createProducer(queue).send(request);
        Session serving = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Message received = serving.createConsumer(queue).receive(WAIT_MS);
        TextMessage answer = serving.createTextMessage("answer");
        answer.setJMSCorrelationID(received.getJMSMessageID());
        serving.createProducer(received.getJMSReplyTo()).send(answer);
        Message found = waiting.receive(WAIT_MS);
        check(((TextMessage) found).getText(), "answer");
        check(found.getJMSCorrelationID(), request.getJMSMessageID());
        waiting.close();
        replies.delete();
        serving.close();
    }

    private void temporaryTopic() throws Exception {
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer consumer = session.createConsumer(topic);
        send(session, topic, "1");
        check(next(consumer), "1");
        consumer.close();
        topic.delete();
    }

    private void durableSubscription() throws Exception {
        Connection named = connect("&clientid='jms-client'");
        for (String spelled : new String[] {"ADDR:amq.topic/jms.durable", "BURL:topic://amq.topic/jms.lasting/"}) {
            Session other = named.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Topic topic = other.createTopic(spelled);
            String name = "sub" + spelled.charAt(0);
            TopicSubscriber subscriber = other.createDurableSubscriber(topic, name);
            send(other, topic, "1");
            check(next(subscriber), "1");
            subscriber.close();
            send(other, topic, "2");
            subscriber = other.createDurableSubscriber(topic, name);
            check(next(subscriber), "2");
            subscriber.close();
            send(other, topic, "kept");
            other.close();
            named.close();
            // the queue of the subscription is exclusive, and its owner is gone: a new connection goes on with it
            named = connect("&clientid='jms-client'");
            other = named.createSession(false, Session.AUTO_ACKNOWLEDGE);
            subscriber = other.createDurableSubscriber(topic, name);
            check(next(subscriber), "kept");
            subscriber.close();
            other.unsubscribe(name);
            send(other, topic, "3");
            subscriber = other.createDurableSubscriber(topic, name);
            check(subscriber.receiveNoWait(), null);
            subscriber.close();
            other.unsubscribe(name);
            other.close();
        }
        named.close();
    }

    private void sendNumbers(Destination to, int count) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (int number = 0; number < count; number++) {
            Message message = session.createTextMessage("m" + number);
            message.setIntProperty("number", number);
            message.setStringProperty("parity", number % 2 == 0 ? "even" : "odd");
            message.setDoubleProperty("half", number / 2.0);
            producer.send(message);
        }
        producer.close();
    }

    private void selectors() throws Exception {
        Queue queue = newQueue("");
        sendNumbers(queue, 5);
        MessageConsumer odd = session.createConsumer(queue, "number = 1 OR half = 1.5");
        check(next(odd) + next(odd), "m1m3");
        check(odd.receiveNoWait(), null);
        QueueBrowser browser = session.createBrowser(queue, "number BETWEEN 2 AND 9 AND parity LIKE 'ev%'");
        List<String> seen = new ArrayList<>();
        for (Object each : Collections.list(browser.getEnumeration())) {
            seen.add(((TextMessage) each).getText());
        }
        check(seen, List.of("m2", "m4"));
        browser.close();
        odd.close();

        Session transacted = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer even = transacted.createConsumer(queue, "number <> 0");
        check(next(even) + next(even), "m2m4");
        transacted.rollback();
        Message again = even.receive(WAIT_MS);
        check(((TextMessage) again).getText() + again.getJMSRedelivered(), "m2true");
        transacted.commit();
        transacted.close();
        check(drained(queue), List.of("m0", "m4"));

        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        Session listening = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        listening.createConsumer(queue, "parity = 'odd'").setMessageListener(each -> {
            try {
                heard.add(((TextMessage) each).getText());
                each.acknowledge();
            } catch (JMSException error) {
                heard.add(error.toString());
            }
        });
        sendNumbers(queue, 1200); // more than the prefetch
        for (int number = 1; number < 1200; number += 2) {
            check(heard.poll(WAIT_MS, TimeUnit.MILLISECONDS), "m" + number);
        }
        listening.close();
        check(drained(queue).size(), 600);
    }

    private void headerSelectors() throws Exception {
        Queue queue = newQueue("");
        TextMessage sent = session.createTextMessage("found");
        sent.setJMSCorrelationID("correlated");
        sent.setJMSType("type");
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("other"));
        producer.send(sent, DeliveryMode.NON_PERSISTENT, 7, 0);
        for (String selector : new String[] {
            "JMSMessageID = '" + sent.getJMSMessageID() + "'", "JMSCorrelationID = 'correlated'", "JMSType = 'type'",
            "JMSPriority > 4", "JMSDeliveryMode = 'NON_PERSISTENT'",
            "JMSTimestamp = " + sent.getJMSTimestamp() + " AND JMSPriority = 7"}) {
            List<Object> seen = Collections.list(session.createBrowser(queue, selector).getEnumeration());
            check(seen.size() + selector, 1 + selector);
            check(((TextMessage) seen.get(0)).getText(), "found");
        }
        check(drained(queue), List.of("other", "found"));
    }

    private void topicSelectors() throws Exception {
        Topic topic = session.createTopic("ADDR:amq.topic/jms.selected");
        MessageConsumer some = session.createConsumer(topic, "number > 2");
        sendNumbers(topic, 4);
        check(next(some), "m3");
        check(some.receiveNoWait(), null);
        some.close();
        Connection named = connect("&clientid='jms-selecting'");
        for (String spelled : new String[] {"ADDR:amq.topic/jms.kept", "BURL:topic://amq.topic/jms.chosen/"}) {
            Session other = named.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Topic durable = other.createTopic(spelled);
            String name = "selected" + spelled.charAt(0);
            TopicSubscriber subscriber = other.createDurableSubscriber(durable, name, "number = 1 OR number = 3", false);
            sendNumbers(durable, 3);
            check(next(subscriber), "m1");
            subscriber.close();
            sendNumbers(durable, 4);
            subscriber = other.createDurableSubscriber(durable, name, "number = 1 OR number = 3", false);
            check(next(subscriber) + next(subscriber), "m1m3");
            check(subscriber.receiveNoWait(), null);
            subscriber.close();
            other.unsubscribe(name);
            other.close();
        }
        named.close();
    }

    private void priorities() throws Exception {
        Queue queue = newQueue(", x-declare: {arguments: {'x-qpid-priorities': 10}}");
        MessageProducer producer = session.createProducer(queue);
        for (int priority : new int[] {1, 9, 0, 5}) {
            producer.send(session.createTextMessage("p" + priority), DeliveryMode.NON_PERSISTENT, priority, 0);
        }
        check(drained(queue), List.of("p9", "p5", "p1", "p0"));
    }

    private void timeToLive() throws Exception {
        Queue queue = newQueue("");
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("short"), DeliveryMode.NON_PERSISTENT, 4, 1);
        producer.send(session.createTextMessage("long"), DeliveryMode.NON_PERSISTENT, 4, 100_000);
        session.createConsumer(newQueue("")).close(); // the broker has answered: both have arrived, and expire from now on
        Thread.sleep(20);
        MessageConsumer consumer = session.createConsumer(queue);
        Message found = consumer.receive(WAIT_MS);
        check(((TextMessage) found).getText(), "long");
        check(found.getJMSExpiration() > System.currentTimeMillis(), true);
        consumer.close();
    }

    private void exclusive() throws Exception {
        Queue queue = newQueue("");
        send(session, queue, "this creates it");
        String name = queue.getQueueName();
        Queue own = session.createQueue("ADDR:" + name + "; {link: {x-subscribe: {exclusive: true}}}");
        MessageConsumer first = session.createConsumer(own);
        Connection other = connect("");
        try {
            other.createSession(false, Session.AUTO_ACKNOWLEDGE).createConsumer(own);
        } catch (JMSException error) {
            first.close();
            other.close();
            return;
        }
        throw new AssertionError("it was subscribed twice");
    }

    private void largeMessages() throws Exception {
        Connection other = connect("&maxprefetch='1'");
        Session sending = other.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = newQueue("");
        MessageProducer producer = sending.createProducer(queue);
        MessageConsumer consumer = sending.createConsumer(queue);
        for (int size : new int[] {0, 65_535, 65_536, 3_000_000}) {
            BytesMessage message = sending.createBytesMessage();
            message.writeBytes(new byte[size]);
            producer.send(message);
            check(((BytesMessage) consumer.receive(WAIT_MS)).getBodyLength(), (long) size);
        }
        other.close();
    }

    private void fullQueue() throws Exception {
        Queue queue = newQueue(", x-declare: {arguments: {'qpid.max_count': 1, 'qpid.policy_type': reject}}");
        Connection other = connect("&sync_publish='all'");
        Session sending = other.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = sending.createProducer(queue);
        producer.send(sending.createTextMessage("1"));
        try {
            producer.send(sending.createTextMessage("2"));
        } catch (JMSException error) {
            other.close();
            check(drained(queue), List.of("1"));
            return;
        }
        throw new AssertionError("nothing was refused");
    }

    /** 0-10 returns nothing: the broker rejects, which this client passes over, or an alternate exchange gets the message. */
    private void unroutable() throws Exception {
        Queue returned = session.createQueue("ADDR:jms-returned; {create: always, node: {type: queue, "
                + "x-bindings: [{exchange: 'amq.fanout', key: returned}]}}");
        session.createConsumer(returned).close();
        Queue queue = newQueue("");
        Connection other = connect("&sync_publish='all'");
        Session sending = other.createSession(false, Session.AUTO_ACKNOWLEDGE);
        send(sending, sending.createQueue("ADDR:amq.direct/jms-nobody"), "rejected");
        send(sending, sending.createTopic("ADDR:jms-returning/jms-nobody; {create: always, node: {type: topic, "
                + "x-declare: {type: direct, alternate-exchange: 'amq.fanout'}}}"), "returned");
        send(sending, queue, "sent");
        other.close();
        check(drained(queue), List.of("sent"));
        check(drained(returned), List.of("returned"));
    }

    private void manySessions() throws Exception {
        List<Session> all = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            all.add(connection.createSession(false, Session.AUTO_ACKNOWLEDGE));
        }
        for (Session each : all) {
            each.close();
        }
    }

    private void failover() throws Exception {
        Queue queue = newQueue(", durable: true");
        MessageConsumer consumer = session.createConsumer(queue);
        send(session, queue, "1");
        check(next(consumer), "1");
        Session holding = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Queue second = newQueue(", durable: true");
        send(session, second, "held");
        ((AMQSession_0_10) session).sync(); // else the client sends it again after the failover
        MessageConsumer held = holding.createConsumer(second);
        check(next(held), "held");

        System.out.println("restart");
        check(orders.readLine(), "restarted");
        send(session, queue, "2");
        check(next(consumer), "2");
        Message again = held.receive(WAIT_MS);
        check(((TextMessage) again).getText(), "held");
        holding.recover(); // until then the client lets nothing be acknowledged
        again = held.receive(WAIT_MS);
        check(((TextMessage) again).getText() + again.getJMSRedelivered(), "heldtrue");
        again.acknowledge();
        holding.close();
        check(drained(second), List.of());
    }

    private static final class Branch implements Xid {
        private final byte[] global;
        private final byte[] branch;

        Branch(String global, String branch) {
            this.global = global.getBytes();
            this.branch = branch.getBytes();
        }

        @Override
        public int getFormatId() {
            return 7;
        }

        @Override
        public byte[] getGlobalTransactionId() {
            return global;
        }

        @Override
        public byte[] getBranchQualifier() {
            return branch;
        }

        boolean isIn(Xid[] found) {
            return Arrays.stream(found).anyMatch(each -> each.getFormatId() == 7
                    && Arrays.equals(each.getGlobalTransactionId(), global)
                    && Arrays.equals(each.getBranchQualifier(), branch));
        }
    }

    private static XAConnection connectXa() throws Exception {
        XAConnection made = new AMQConnectionFactory(url(""))
                .createXAConnection(System.getenv("PEER_USERNAME"), System.getenv("PEER_PASSWORD"));
        made.start();
        return made;
    }

    private static void sendIn(XAResource resource, Xid xid, Session session, Destination to, String text)
            throws Exception {
        resource.start(xid, XAResource.TMNOFLAGS);
        send(session, to, text);
        resource.end(xid, XAResource.TMSUCCESS);
    }

    private void distributed() throws Exception {
        Queue from = newQueue("");
        Queue to = newQueue("");
        send(session, from, "1", "2");
        check(drained(to), List.of()); // this creates it
        XAConnection connected = connectXa();
        XASession working = connected.createXASession();
        XAResource resource = working.getXAResource();
        Branch moved = new Branch("moved", "b");
        resource.start(moved, XAResource.TMNOFLAGS);
        MessageConsumer consumer = working.createConsumer(from);
        send(working, to, "moved " + next(consumer));
        resource.end(moved, XAResource.TMSUCCESS);
        consumer.close();
        check(resource.prepare(moved), XAResource.XA_OK);
        check(moved.isIn(resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN)), true);
        check(drained(to), List.of());
        resource.commit(moved, false);
        check(drained(to), List.of("moved 1"));
        check(moved.isIn(resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN)), false);

        Branch undone = new Branch("undone", "b");
        sendIn(resource, undone, working, to, "undone");
        resource.prepare(undone);
        resource.rollback(undone);
        Branch once = new Branch("once", "b");
        sendIn(resource, once, working, to, "once");
        resource.commit(once, true);
        Branch suspended = new Branch("suspended", "b");
        resource.start(suspended, XAResource.TMNOFLAGS);
        send(working, to, "suspended");
        resource.end(suspended, XAResource.TMSUSPEND);
        resource.start(suspended, XAResource.TMRESUME);
        resource.end(suspended, XAResource.TMSUCCESS);
        check(resource.setTransactionTimeout(60), true);
        resource.rollback(suspended);
        try {
            resource.commit(undone, false);
            throw new AssertionError("a branch that is gone was committed");
        } catch (XAException error) {
            check(error.errorCode, XAException.XAER_NOTA);
        }
        connected.close();
        check(drained(to), List.of("once"));
        check(drained(from), List.of("2"));
    }

    private void distributedOverRestart() throws Exception {
        Queue queue = newQueue(", durable: true");
        check(drained(queue), List.of());
        XAConnection connected = connectXa();
        XASession working = connected.createXASession();
        Branch[] branches = {new Branch("lasting", "committed"), new Branch("lasting", "undone")};
        for (Branch each : branches) {
            sendIn(working.getXAResource(), each, working, queue, new String(each.getBranchQualifier()));
            check(working.getXAResource().prepare(each), XAResource.XA_OK);
        }
        connected.close();
        connection.close();

        System.out.println("restart killed");
        check(orders.readLine(), "restarted");
        connected = connectXa();
        XAResource resource = connected.createXASession().getXAResource();
        Xid[] found = resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN);
        check(branches[0].isIn(found) && branches[1].isIn(found), true);
        resource.commit(branches[0], false);
        resource.rollback(branches[1]);
        connected.close();
        connection = connect("");
        session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        check(drained(queue), List.of("committed"));
    }
}
