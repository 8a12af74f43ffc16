package tidewheel.clients;

import static java.util.stream.Collectors.toList;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.Closeable;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.StreamSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/** What the client can be told to do: one producer, and the consumers that it was told to start. */
final class Verbs implements Closeable {
    /** Carries out one verb; null when there is nothing to tell. */
    private interface Verb {
        Object carryOut(JsonObject asked) throws Exception;
    }

    private final ClientServiceProvider library = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final Producer producer;
    private final Map<String, List<TransactionResolution>> answers = new ConcurrentHashMap<>();
    private final Map<String, Transaction> halves = new ConcurrentHashMap<>();
    private final List<SimpleConsumer> consumers = Collections.synchronizedList(new ArrayList<>());
    private final List<Listener> listeners = Collections.synchronizedList(new ArrayList<>());
    private final Map<Integer, LitePushConsumer> liteConsumers = new ConcurrentHashMap<>();
    private final List<MessageViewImpl> messages = Collections.synchronizedList(new ArrayList<>());
    private final Map<String, Verb> verbs = Map.ofEntries(
        Map.entry("send", this::send),
        Map.entry("recall", this::recall),
        Map.entry("send_half", this::sendHalf),
        Map.entry("end_half", this::endHalf),
        Map.entry("answer_checks", this::answerChecks),
        Map.entry("simple", this::simple),
        Map.entry("push", this::push),
        Map.entry("lite_push", this::litePush),
        Map.entry("subscribe_lite", this::subscribeLite),
        Map.entry("unsubscribe_lite", this::unsubscribeLite),
        Map.entry("receive", this::receive),
        Map.entry("ack", this::ack),
        Map.entry("change_invisible", this::changeInvisible),
        Map.entry("seen", asked -> listeners.get(asked.get("consumer").getAsInt()).seen()),
        Map.entry("close", this::closeConsumer));

    Verbs(String endpoints) throws ClientException {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoints);
        if ("1".equals(System.getenv("TIDEWHEEL_CLIENT_PLAINTEXT"))) {
            builder.enableSsl(false);
        }
        String accessKey = System.getenv("TIDEWHEEL_CLIENT_ACCESS_KEY");
        if (accessKey != null) {
            String secret = System.getenv("TIDEWHEEL_CLIENT_SECRET");
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, secret));
        }
        configuration = builder.build();
        producer = library.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTransactionChecker(this::check)
            .build();
    }

    Object carryOut(String verb, JsonObject asked) throws Exception {
        return verbs.get(verb).carryOut(asked);
    }

    @Override
    public void close() throws IOException {
        producer.close();
    }

    // What is sent.

    private Object send(JsonObject asked) throws ClientException {
        SendReceipt receipt = producer.send(message(asked));
        String handle = receipt.getRecallHandle();
        return Map.of("message_id", receipt.getMessageId().toString(), "recall_handle", handle == null ? "" : handle);
    }

    private Object recall(JsonObject asked) throws ClientException {
        return producer.recallMessage(text(asked, "topic"), text(asked, "recall_handle")).getMessageId().toString();
    }

    private Object sendHalf(JsonObject asked) throws ClientException {
        Transaction transaction = producer.beginTransaction();
        String name = text(asked, "name");
        MessageBuilder half = library.newMessageBuilder().setTopic(text(asked, "topic")).setKeys(name);
        producer.send(half.setBody(name.getBytes(StandardCharsets.UTF_8)).build(), transaction);
        halves.put(name, transaction);
        return null;
    }

    private Object endHalf(JsonObject asked) throws ClientException {
        Transaction transaction = halves.get(text(asked, "name"));
        if ("commit".equals(text(asked, "how"))) {
            transaction.commit();
        } else {
            transaction.rollback();
        }
        return null;
    }

    private Object answerChecks(JsonObject asked) {
        List<TransactionResolution> told = new ArrayList<>();
        asked.getAsJsonArray("how").forEach(how -> told.add(resolution(how.getAsString())));
        answers.put(text(asked, "name"), told);
        return null;
    }

    private TransactionResolution check(MessageView half) {
        List<TransactionResolution> left = answers.get(body(half));
        if (left == null) {
            return TransactionResolution.UNKNOWN;
        }
        synchronized (left) {
            return left.size() > 1 ? left.remove(0) : left.get(0);
        }
    }

    private static TransactionResolution resolution(String how) {
        return TransactionResolution.valueOf(how.toUpperCase());
    }

    private Message message(JsonObject asked) {
        MessageBuilder message = library.newMessageBuilder().setTopic(text(asked, "topic"));
        message.setBody(text(asked, "body").getBytes(StandardCharsets.UTF_8));
        if (asked.has("tag")) {
            message.setTag(text(asked, "tag"));
        }
        if (asked.has("keys")) {
            message.setKeys(texts(asked.getAsJsonArray("keys")));
        }
        if (asked.has("message_group")) {
            message.setMessageGroup(text(asked, "message_group"));
        }
        if (asked.has("lite_topic")) {
            message.setLiteTopic(text(asked, "lite_topic"));
        }
        if (asked.has("deliver_at_s")) {
            message.setDeliveryTimestamp(asked.get("deliver_at_s").getAsLong() * 1000);
        }
        if (asked.has("priority")) {
            message.setPriority(asked.get("priority").getAsInt());
        }
        if (asked.has("properties")) {
            asked.getAsJsonObject("properties").entrySet()
                .forEach(one -> message.addProperty(one.getKey(), one.getValue().getAsString()));
        }
        return message.build();
    }

    // What is received.

    private Object simple(JsonObject asked) throws ClientException {
        SimpleConsumer consumer = library.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(text(asked, "group"))
            .setSubscriptionExpressions(subscriptions(asked))
            .setAwaitDuration(seconds(asked, "await_seconds"))
            .build();
        return placeOf(consumer, consumers);
    }

    private Object push(JsonObject asked) throws ClientException {
        Listener listener = new Listener(asked.getAsJsonObject("plan"));
        library.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(text(asked, "group"))
            .setSubscriptionExpressions(subscriptions(asked))
            .setMessageListener(listener)
            .build();
        return placeOf(listener, listeners);
    }

    private Object litePush(JsonObject asked) throws ClientException {
        Listener listener = new Listener(asked.getAsJsonObject("plan"));
        LitePushConsumer consumer = library.newLitePushConsumerBuilder()
            .bindTopic(text(asked, "topic"))
            .setClientConfiguration(configuration)
            .setConsumerGroup(text(asked, "group"))
            .setMessageListener(listener)
            .build();
        int place = placeOf(listener, listeners);
        liteConsumers.put(place, consumer);
        return place;
    }

    private Object subscribeLite(JsonObject asked) throws ClientException {
        liteConsumers.get(asked.get("consumer").getAsInt()).subscribeLite(text(asked, "lite_topic"));
        return null;
    }

    private Object unsubscribeLite(JsonObject asked) throws ClientException {
        liteConsumers.get(asked.get("consumer").getAsInt()).unsubscribeLite(text(asked, "lite_topic"));
        return null;
    }

    private Object receive(JsonObject asked) throws ClientException {
        int count = asked.get("count").getAsInt();
        return consumer(asked).receive(count, seconds(asked, "lease_seconds")).stream().map(this::got).collect(toList());
    }

    private Object ack(JsonObject asked) throws ClientException {
        consumer(asked).ack(leased(asked));
        return null;
    }

    private Object changeInvisible(JsonObject asked) throws ClientException {
        MessageViewImpl message = leased(asked);
        consumer(asked).changeInvisibleDuration(message, seconds(asked, "seconds"));
        return message.getReceiptHandle();
    }

    private Object closeConsumer(JsonObject asked) throws IOException {
        consumer(asked).close();
        return null;
    }

    private SimpleConsumer consumer(JsonObject asked) {
        return consumers.get(asked.get("consumer").getAsInt());
    }

    /** The message that is meant, with the handle that is meant: a scenario may use one that is void. */
    private MessageViewImpl leased(JsonObject asked) {
        MessageViewImpl message = messages.get(asked.get("native").getAsInt());
        message.setReceiptHandle(text(asked, "handle"));
        return message;
    }

    private Map<String, Object> got(MessageView view) {
        MessageViewImpl message = (MessageViewImpl) view;
        if (message.isCorrupted()) {
            throw new AssertionError("the message is corrupted");
        }
        Map<String, Object> got = new HashMap<>();
        got.put("native", placeOf(message, messages));
        got.put("handle", message.getReceiptHandle());
        got.put("message_id", message.getMessageId().toString());
        got.put("body", body(message));
        got.put("attempt", message.getDeliveryAttempt());
        got.put("tag", message.getTag().orElse(""));
        got.put("keys", message.getKeys().stream().sorted().collect(toList()));
        got.put("properties", message.getProperties());
        got.put("message_group", message.getMessageGroup().orElse(""));
        return got;
    }

    private static Map<String, FilterExpression> subscriptions(JsonObject asked) {
        FilterExpressionType type =
            asked.get("is_sql").getAsBoolean() ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(text(asked, "topic"), new FilterExpression(text(asked, "filter"), type));
    }

    // Words.

    static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static <T> int placeOf(T one, List<T> all) {
        synchronized (all) {
            all.add(one);
            return all.size() - 1;
        }
    }

    private static String text(JsonObject asked, String name) {
        return asked.get(name).getAsString();
    }

    private static String[] texts(JsonArray all) {
        return StreamSupport.stream(all.spliterator(), false).map(JsonElement::getAsString).toArray(String[]::new);
    }

    private static Duration seconds(JsonObject asked, String name) {
        return Duration.ofSeconds(asked.get(name).getAsLong());
    }
}
