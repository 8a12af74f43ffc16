package tidewheel.rocketmq;

import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * Opens a store and prints every message of every queue as the genuine store hands it out, one JSON object a line.
 * With a topic and a count it first lets the timer wheel run until that topic holds so many messages.
 */
public final class ReadStore {
    private static final int BATCH = 32;
    private static final long PATIENCE_MS = 60_000;

    private ReadStore() {
    }

    public static void main(String[] arguments) {
        try {
            read(arguments);
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void read(String[] arguments) throws Exception {
        String root = arguments[0];
        MessageStoreConfig config = Stores.config(root);
        DefaultMessageStore store = Stores.open(config);
        TimerMessageStore timers = arguments.length > 1 ? Stores.openTimers(store, config) : null;
        store.start();
        if (timers != null) {
            timers.start(true);
            await(store, arguments[1], Integer.parseInt(arguments[2]));
            timers.shutdown();
        }
        printAll(store, root);
        printOffsets(root);
        store.shutdown();
    }

    private static void await(DefaultMessageStore store, String topic, int count) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (count(store, topic) < count) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException(topic + " has " + count(store, topic) + " messages, not " + count);
            }
            Thread.sleep(50);
        }
    }

    private static long count(DefaultMessageStore store, String topic) throws Exception {
        long sum = 0;
        for (int queue = 0; queue < 16; queue++) {
            sum += store.getMaxOffsetInQueue(topic, queue) - store.getMinOffsetInQueue(topic, queue);
        }
        return sum;
    }

    private static void printAll(DefaultMessageStore store, String root) throws Exception {
        for (String kind : new String[] {"consumequeue", "batchconsumequeue"}) {
            File[] topics = new File(root, kind).listFiles(File::isDirectory);
            for (File topic : topics == null ? new File[0] : topics) {
                for (File queue : topic.listFiles(File::isDirectory)) {
                    printQueue(store, topic.getName(), Integer.parseInt(queue.getName()));
                }
            }
        }
    }

    private static void printQueue(DefaultMessageStore store, String topic, int queueId) throws Exception {
        long end = store.getMaxOffsetInQueue(topic, queueId);
        long offset = store.getMinOffsetInQueue(topic, queueId);
        Stores.print(new LinkedHashMap<>(Map.of("queue", topic, "queueId", queueId, "min", offset, "max", end)));
        while (offset < end) {
            GetMessageResult found = store.getMessage("reader", topic, queueId, offset, BATCH, null);
            if (found.getMessageCount() == 0 && found.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(topic + "/" + queueId + " stops at " + offset + ": " + found.getStatus());
            }
            for (int at = 0; at < found.getMessageMapedList().size(); at++) {
                print(found.getMessageMapedList().get(at), topic);
            }
            found.release();
            offset = found.getNextBeginOffset();
        }
    }

    private static void print(SelectMappedBufferResult stored, String queue) {
        ByteBuffer buffer = stored.getByteBuffer();
        byte[] bytes = new byte[stored.getSize()];
        buffer.duplicate().get(bytes);
        MessageExt message = MessageDecoder.decode(buffer.duplicate(), true, true, false);
        Map<String, Object> line = new HashMap<>();
        line.put("topic", message.getTopic());
        line.put("of", queue);
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("body", Stores.base64(message.getBody() == null ? new byte[0] : message.getBody()));
        line.put("bytes", Stores.base64(bytes));
        line.put("properties", message.getProperties());
        line.put("sysFlag", message.getSysFlag());
        Stores.print(line);
    }

    private static void printOffsets(String root) throws Exception {
        Path file = Path.of(root, "config", "consumerOffset.json");
        if (Files.exists(file)) {
            Offsets offsets = Offsets.fromJson(Files.readString(file), Offsets.class);
            Stores.print(new HashMap<>(Map.of("offsets", offsets.getOffsetTable())));
        }
    }
}
