package tidewheel.clients;

import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Does what it was told, and notes when. */
final class Listener implements MessageListener {
    private final long sleepMs;
    private final int failures;
    private final String poison;
    private final Map<String, Integer> calls = new HashMap<>();
    private final List<Map<String, Object>> seen = new ArrayList<>();

    Listener(JsonObject plan) {
        sleepMs = (long) (plan.get("seconds").getAsDouble() * 1000);
        failures = plan.get("failures").getAsInt();
        poison = plan.get("poison").getAsString();
    }

    @Override
    public ConsumeResult consume(MessageView message) {
        String body = Verbs.body(message);
        int place = begin(body, message);
        try {
            Thread.sleep(sleepMs);
        } catch (InterruptedException shutdown) {
            return ConsumeResult.FAILURE;
        }
        return end(place, body) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    }

    /** A copy of every call so far. */
    synchronized List<Map<String, Object>> seen() {
        List<Map<String, Object>> copy = new ArrayList<>();
        seen.forEach(call -> copy.add(new HashMap<>(call)));
        return copy;
    }

    private synchronized int begin(String body, MessageView message) {
        calls.merge(body, 1, Integer::sum);
        seen.add(new HashMap<>(Map.of(
            "body", body,
            "attempt", message.getDeliveryAttempt(),
            "message_group", message.getMessageGroup().orElse(""),
            "lite_topic", message.getLiteTopic().orElse(""),
            "began_ms", System.currentTimeMillis(),
            "ended_ms", 0)));
        return seen.size() - 1;
    }

    private synchronized boolean end(int place, String body) {
        seen.get(place).put("ended_ms", System.currentTimeMillis());
        return calls.get(body) > failures && !body.equals(poison);
    }
}
