// Calls a function for each message: a push consumer.
//
//   tidewheel sample java --use push > Sample.java
//   mvn dependency:copy -Dartifact=org.apache.rocketmq:rocketmq-client-java:5.2.0 -DoutputDirectory=libs
//   java -cp 'libs/*' Sample.java
//
// Its end takes up to half a minute: this client waits for its open long poll.
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it takes any certificate.

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

public class Sample {
    private static final String TOPIC = "sample-java-push";
    private static final String GROUP = "sample-java-push";
    private static final boolean TLS = true;
    private static final ClientServiceProvider CLIENT = ClientServiceProvider.loadService();
    private static final CountDownLatch RECEIVED = new CountDownLatch(1);

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = configuration();
        try (PushConsumer consumer = CLIENT.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(GROUP)
                .setSubscriptionExpressions(Map.of(TOPIC, FilterExpression.SUB_ALL))
                .setMessageListener(Sample::consume)
                .build();
            Producer producer = CLIENT.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(TOPIC)
                .build()) {
            Message message = CLIENT.newMessageBuilder()
                .setTopic(TOPIC)
                .setBody("hello from Java".getBytes(StandardCharsets.UTF_8))
                .build();
            System.out.println("sent " + producer.send(message).getMessageId());

            RECEIVED.await(); // a service waits for its own end here
        }
        System.exit(0);
    }

    /** Runs in a thread of the consumer; FAILURE or an exception has the message come again. */
    private static ConsumeResult consume(MessageView one) {
        String body = StandardCharsets.UTF_8.decode(one.getBody()).toString();
        System.out.println("received " + one.getMessageId() + " " + body);
        RECEIVED.countDown();
        return ConsumeResult.SUCCESS; // acknowledges it
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
