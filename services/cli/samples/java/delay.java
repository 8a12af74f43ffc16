// Sends a message that is delivered in 3 seconds.
//
//   tidewheel sample java --use delay > Sample.java
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
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageId;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

public class Sample {
    private static final String TOPIC = "sample-java-delay";
    private static final String GROUP = "sample-java-delay";
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
            long due = System.currentTimeMillis() + 3_000;
            Message message = CLIENT.newMessageBuilder()
                .setTopic(TOPIC)
                .setBody("a reminder from Java".getBytes(StandardCharsets.UTF_8))
                .setDeliveryTimestamp(due)
                .build();
            MessageId sent = producer.send(message).getMessageId();
            System.out.println("sent " + sent);

            Set<MessageId> received = new HashSet<>();
            while (!received.contains(sent)) {
                // Up to 32 messages, leased for 15 s.
                for (MessageView one : consumer.receive(32, Duration.ofSeconds(15))) {
                    String body = StandardCharsets.UTF_8.decode(one.getBody()).toString();
                    long late = System.currentTimeMillis() - due;
                    String text = body + " " + late + " ms after it was due";
                    System.out.println("received " + one.getMessageId() + " " + text);
                    consumer.ack(one);
                    received.add(one.getMessageId());
                }
            }
        }
        System.exit(0);
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
