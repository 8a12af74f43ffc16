// Cancels two timers: one by its recall handle, one by a key of your own.
//
//   tidewheel sample java --use cancel > Sample.java
//   mvn dependency:copy -Dartifact=org.apache.rocketmq:rocketmq-client-java:5.2.0 -DoutputDirectory=libs
//   java -cp 'libs/*' Sample.java
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it takes any certificate.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageId;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

public class Sample {
    private static final String TOPIC = "sample-java-cancel";
    private static final String GROUP = "sample-java-cancel";
    private static final boolean TLS = true;
    private static final ClientServiceProvider CLIENT = ClientServiceProvider.loadService();

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = configuration();
        try (Producer producer = CLIENT.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(TOPIC)
                .build();
            SimpleConsumer consumer = CLIENT.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(GROUP)
                .setSubscriptionExpressions(Map.of(TOPIC, FilterExpression.SUB_ALL))
                .setAwaitDuration(Duration.ofSeconds(10))
                .build()) {
            SendReceipt receipt = producer.send(timer("order 7 has timed out").build());
            producer.recallMessage(TOPIC, receipt.getRecallHandle()); // throws unless it will not arrive
            System.out.println("cancelled " + receipt.getMessageId());

            producer.send(timer("order 8 has timed out").addProperty("TW_TIMER_KEY", "order:8").build());
            // Cancels the timer in the same step, from any process.
            MessageBuilder paid = message("order 8 is paid").addProperty("TW_TIMER_CANCEL", "order:8");
            MessageId sent = producer.send(paid.build()).getMessageId();
            System.out.println("sent " + sent);

            Set<MessageId> received = new HashSet<>();
            while (!received.contains(sent)) {
                // Up to 32 messages, leased for 15 s.
                for (MessageView one : consumer.receive(32, Duration.ofSeconds(15))) {
                    String body = StandardCharsets.UTF_8.decode(one.getBody()).toString();
                    String verdict = one.getProperties().get("TW_TIMER_VERDICT");
                    System.out.println("received " + one.getMessageId() + " " + body + " " + verdict);
                    consumer.ack(one);
                    received.add(one.getMessageId());
                }
            }
        }
        System.exit(0);
    }

    private static MessageBuilder message(String body) {
        return CLIENT.newMessageBuilder().setTopic(TOPIC).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    /** A message that is delivered in half an hour, unless it is cancelled. */
    private static MessageBuilder timer(String body) {
        return message(body).setDeliveryTimestamp(System.currentTimeMillis() + 1_800_000);
    }

    private static ClientConfiguration configuration() {
        ClientConfigurationBuilder broker = ClientConfiguration.newBuilder();
        broker.setEndpoints("127.0.0.1:8081").enableSsl(TLS);
        String accessKey = System.getenv("TIDEWHEEL_ACCESS_KEY");
        String secretKey = System.getenv("TIDEWHEEL_SECRET_KEY");
        if (accessKey != null && secretKey != null) {
            broker.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, secretKey));
        }
        return broker.build();
    }
}
