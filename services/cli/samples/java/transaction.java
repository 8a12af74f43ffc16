// Sends two messages that agree with a database: a commit, and a check-back for a commit that never came.
//
//   tidewheel sample java --use transaction > Sample.java
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
import java.util.concurrent.ConcurrentHashMap;
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
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Sample {
    private static final String TOPIC = "sample-java-transaction";
    private static final String GROUP = "sample-java-transaction";
    private static final boolean TLS = true;
    private static final ClientServiceProvider CLIENT = ClientServiceProvider.loadService();
    /** Stands for the table of your database. */
    private static final Set<String> PAID = ConcurrentHashMap.newKeySet();

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = configuration();
        try (Producer producer = CLIENT.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(TOPIC)
                .setTransactionChecker(Sample::check)
                .build();
            SimpleConsumer consumer = CLIENT.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(GROUP)
                .setSubscriptionExpressions(Map.of(TOPIC, FilterExpression.SUB_ALL))
                .setAwaitDuration(Duration.ofSeconds(10))
                .build()) {
            Transaction transaction = producer.beginTransaction();
            MessageId first = producer.send(message("order 7 is paid"), transaction).getMessageId();
            System.out.println("sent " + first); // a half: no consumer sees it before its commit
            PAID.add("order 7 is paid"); // the database commits
            transaction.commit();

            Transaction open = producer.beginTransaction();
            MessageId second = producer.send(message("order 8 is paid"), open).getMessageId();
            System.out.println("sent " + second);
            // The database commits, and then the process dies: the broker asks after 6 s.
            PAID.add("order 8 is paid");

            Set<MessageId> received = new HashSet<>();
            while (!received.containsAll(Set.of(first, second))) {
                // Up to 32 messages, leased for 15 s.
                for (MessageView one : consumer.receive(32, Duration.ofSeconds(15))) {
                    String body = StandardCharsets.UTF_8.decode(one.getBody()).toString();
                    System.out.println("received " + one.getMessageId() + " " + body);
                    consumer.ack(one);
                    received.add(one.getMessageId());
                }
            }
        }
        System.exit(0);
    }

    /** The broker asks about a half that stays open: the database knows. */
    private static TransactionResolution check(MessageView half) {
        System.out.println("asked about " + half.getMessageId());
        boolean isPaid = PAID.contains(StandardCharsets.UTF_8.decode(half.getBody()).toString());
        // The database may still commit: the broker asks again.
        return isPaid ? TransactionResolution.COMMIT : TransactionResolution.UNKNOWN;
    }

    private static Message message(String body) {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        return CLIENT.newMessageBuilder().setTopic(TOPIC).setBody(bytes).build();
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
