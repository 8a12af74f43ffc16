package tidewheel.rocketmq;

import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * Writes a store as a genuine broker would have left it: messages of every form a log may hold, timers of both
 * kinds in every state, transactions in every state, and config files. What each message is, it prints as one
 * JSON object a line. Argument: folder; then "abort" to leave like a broker that was killed.
 */
public final class WriteStore {
    private static final String TIMER_TOPIC = TimerMessageStore.TIMER_TOPIC;
    private static final String LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX";
    private static final String HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC";
    private static final String OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
    private static final long FAR_MS = 3_600_000;

    private final DefaultMessageStore store;
    private final String root;
    private final ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();

    private WriteStore(DefaultMessageStore store, String root) {
        this.store = store;
        this.root = root;
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        String root = arguments[0];
        Files.createDirectories(Path.of(root, "config"));
        writeTopics(root);
        MessageStoreConfig config = Stores.config(root);
        DefaultMessageStore store = Stores.open(config);
        TimerMessageStore timers = Stores.openTimers(store, config);
        store.start();
        timers.start(true);
        new WriteStore(store, root).write();
        awaitDispatch(store);
        timers.shutdown();
        store.shutdown();
        if (arguments.length > 1) {
            Files.writeString(Path.of(root, "abort"), "1");
        }
    }

    private void write() throws Exception {
        ordinary();
        batch();
        innerBatch();
        compressed();
        hosts();
        longTopic();
        levels();
        timers();
        transactions();
        progress();
    }

    private void ordinary() throws Exception {
        for (int number = 0; number < 120; number++) {
            MessageExtBrokerInner message = message("orders", number % 4, "order " + number + "x".repeat(1500));
            message.setTags(number % 2 == 0 ? "paid" : "sent");
            message.setKeys("key-" + number);
            put("ordinary", message);
        }
    }

    private void batch() throws Exception {
        List<Message> several = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            Message one = new Message("orders", "paid", "batch-" + number, Stores.utf8("of a batch " + number));
            MessageAccessor.putProperty(one, "UNIQ_KEY", "BATCH" + number);
            several.add(one);
        }
        MessageExtBatch batch = new MessageExtBatch();
        address(batch, "127.0.0.1", "127.0.0.1");
        batch.setTopic("orders");
        batch.setQueueId(1);
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBody(MessageDecoder.encodeMessages(several));
        PutMessageResult result = store.putMessages(batch);
        check(result);
        long first = result.getAppendMessageResult().getLogicsOffset();
        for (int number = 0; number < several.size(); number++) {
            tell("batch", "orders", 1, first + number, several.get(number).getBody(), "BATCH" + number);
        }
    }

    private void innerBatch() throws Exception {
        for (int record = 0; record < 2; record++) {
            List<Message> several = new ArrayList<>();
            for (int number = 0; number < 3; number++) {
                Message one = new Message("batches", "red", Stores.utf8("inner " + record + "/" + number));
                MessageAccessor.putProperty(one, "UNIQ_KEY", "INNER" + record + number);
                several.add(one);
            }
            MessageExtBrokerInner batch = message("batches", 0, "");
            batch.setBody(MessageDecoder.encodeMessages(several));
            batch.setSysFlag(MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG);
            MessageAccessor.putProperty(batch, "INNER_NUM", "3");
            batch.setPropertiesString(MessageDecoder.messageProperties2String(batch.getProperties()));
            PutMessageResult result = store.putMessage(batch);
            check(result);
            long first = result.getAppendMessageResult().getLogicsOffset();
            for (int number = 0; number < several.size(); number++) {
                tell("inner", "batches", 0, first + number, several.get(number).getBody(), "INNER" + record + number);
            }
        }
    }

    private void compressed() throws Exception {
        for (CompressionType type : CompressionType.values()) {
            byte[] plain = Stores.utf8("compressed by " + type + " " + "again and ".repeat(200));
            MessageExtBrokerInner message = message("orders", 2, "");
            message.setBody(CompressorFactory.getCompressor(type).compress(plain, 5));
            message.setSysFlag(MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
            PutMessageResult result = put(message);
            tell("compressed", "orders", 2, result.getAppendMessageResult().getLogicsOffset(), plain, uniq(message));
        }
    }

    private void hosts() throws Exception {
        String[][] pairs = {{"2001:db8::1", "127.0.0.1"}, {"127.0.0.1", "2001:db8::2"}, {"::1", "2001:db8::2"}};
        for (String[] pair : pairs) {
            MessageExtBrokerInner message = message("orders", 3, "from " + pair[0]);
            address(message, pair[0], pair[1]);
            put("hosts", message);
        }
    }

    private void longTopic() throws Exception {
        put("v2", message("long".repeat(50), 0, "a topic of 200 characters"));
    }

    /** Delay levels: one delivered, one that a crash of the cursor would repeat, two that wait. */
    private void levels() throws Exception {
        DelayOffsets offsets = new DelayOffsets();
        for (int number = 0; number < 2; number++) {
            put("level-delivered", level("late", 4, "level delivered " + number));
            put("ordinary", delivered("late", "level delivered " + number));
        }
        put("level-pending", level("late", 4, "level waits"));
        put("level-pending", level("late", 18, "level waits long"));
        offsets.getOffsetTable().put(4, 1L);
        Files.writeString(Path.of(root, "config", "delayOffset.json"), offsets.toJson());
    }

    /** Timer wheel: delivered by the genuine wheel, recalled, and waiting. */
    private void timers() throws Exception {
        long now = System.currentTimeMillis() / 1000 * 1000;
        put("timer-delivered", timer("reminders", now + 1000, "wheel delivers this"));
        put("timer-pending", timer("reminders", now + FAR_MS, "wheel waits"));
        put("timer-pending", timer("reminders", now + 2 * FAR_MS, "wheel waits longer"));
        MessageExtBrokerInner recalled = timer("reminders", now + FAR_MS, "recalled");
        put("timer-recalled", recalled);
        MessageExtBrokerInner marker = timer("reminders", now + FAR_MS, "");
        MessageAccessor.putProperty(marker, "TIMER_DEL_UNIQKEY", "reminders+" + uniq(recalled));
        MessageAccessor.putProperty(marker, "UNIQ_KEY", "MARKER");
        put("timer-marker", marker);
        await("reminders", 1);
    }

    /** Transactions: committed, rolled back, committed with the op record lost, asked about again, and open. */
    private void transactions() throws Exception {
        PutMessageResult committed = put("half-ended", half("payments", "committed"));
        put("ordinary", commit("payments", "committed", committed));
        put("half-ended", half("payments", "rolled back"));
        PutMessageResult lost = put("half-ended", half("payments", "op lost"));
        put("ordinary", commit("payments", "op lost", lost));
        put("half-ended", half("payments", "asked again"));
        put("half-open", again(half("payments", "asked again")));
        put("half-open", half("payments", "open"));
        MessageExtBrokerInner op = message(OP_TOPIC, 0, "0,1,");
        op.setTags("d");
        put("op", op);
    }

    private void progress() throws Exception {
        Offsets offsets = new Offsets();
        offsets.put("orders", "shop", 0, 10);
        offsets.put("orders", "shop", 1, 999_999);
        offsets.put("orders", "audit", 3, 2);
        offsets.put(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0, 0);
        offsets.put(OP_TOPIC, "CID_RMQ_SYS_TRANS", 0, 0);
        Files.writeString(Path.of(root, "config", "consumerOffset.json"), offsets.toJson());
    }

    private MessageExtBrokerInner level(String topic, int level, String text) {
        MessageExtBrokerInner message = message(topic, 0, text);
        message.setDelayTimeLevel(level);
        return hidden(message, LEVEL_TOPIC, level - 1);
    }

    private MessageExtBrokerInner timer(String topic, long dueMs, String text) {
        MessageExtBrokerInner message = message(topic, 0, text);
        MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", String.valueOf(dueMs));
        MessageAccessor.putProperty(message, "TIMER_OUT_MS", String.valueOf(dueMs));
        return hidden(message, TIMER_TOPIC, 0);
    }

    private MessageExtBrokerInner half(String topic, String text) {
        MessageExtBrokerInner message = message(topic, 0, text);
        MessageAccessor.putProperty(message, "TRAN_MSG", "true");
        MessageAccessor.putProperty(message, "PGROUP", "producers");
        MessageAccessor.putProperty(message, "__transactionId__", uniq(message));
        return hidden(message, HALF_TOPIC, 0);
    }

    private MessageExtBrokerInner again(MessageExtBrokerInner half) {
        MessageAccessor.putProperty(half, "TRANSACTION_CHECK_TIMES", "1");
        return half;
    }

    private MessageExtBrokerInner commit(String topic, String text, PutMessageResult half) {
        MessageExtBrokerInner message = message(topic, 0, text);
        message.setSysFlag(MessageSysFlag.TRANSACTION_COMMIT_TYPE);
        message.setPreparedTransactionOffset(half.getAppendMessageResult().getWroteOffset());
        return message;
    }

    private MessageExtBrokerInner delivered(String topic, String text) {
        return message(topic, 0, text);
    }

    private MessageExtBrokerInner hidden(MessageExtBrokerInner message, String topic, int queueId) {
        MessageAccessor.putProperty(message, "REAL_TOPIC", message.getTopic());
        MessageAccessor.putProperty(message, "REAL_QID", String.valueOf(message.getQueueId()));
        message.setTopic(topic);
        message.setQueueId(queueId);
        return message;
    }

    private MessageExtBrokerInner message(String topic, int queueId, String text) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(Stores.utf8(text));
        message.setBornTimestamp(System.currentTimeMillis());
        MessageAccessor.putProperty(message, "UNIQ_KEY", "ID" + Integer.toHexString((topic + text).hashCode()));
        address(message, "127.0.0.1", "127.0.0.1");
        return message;
    }

    private static void address(MessageExtBrokerInner message, String born, String stored) {
        message.setBornHost(Stores.host(born, 10911));
        message.setStoreHost(Stores.host(stored, 10911));
        if (isV6(message.getBornHost())) {
            message.setBornHostV6Flag();
        }
        if (isV6(message.getStoreHost())) {
            message.setStoreHostAddressV6Flag();
        }
    }

    private static boolean isV6(Object host) {
        return ((InetSocketAddress) host).getAddress().getAddress().length == 16;
    }

    private PutMessageResult put(String kind, MessageExtBrokerInner message) throws Exception {
        PutMessageResult result = put(message);
        tell(kind, message.getTopic(), message.getQueueId(), result.getAppendMessageResult().getLogicsOffset(),
            message.getBody(), uniq(message));
        return result;
    }

    private PutMessageResult put(MessageExtBrokerInner message) {
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        PutMessageResult result = store.putMessage(message);
        check(result);
        return result;
    }

    private static void check(PutMessageResult result) {
        if (!result.isOk()) {
            throw new IllegalStateException("the genuine store answered " + result);
        }
    }

    private static String uniq(Message message) {
        return message.getProperty("UNIQ_KEY");
    }

    private static void tell(String kind, String topic, int queueId, long queueOffset, byte[] body, String uniq) {
        Map<String, Object> line = new HashMap<>();
        line.put("kind", kind);
        line.put("topic", topic);
        line.put("queueId", queueId);
        line.put("queueOffset", queueOffset);
        line.put("body", Stores.base64(body));
        line.put("uniq", uniq);
        Stores.print(line);
    }

    private void await(String topic, long count) throws Exception {
        long end = System.currentTimeMillis() + 60_000;
        while (store.getMaxOffsetInQueue(topic, 0) < count) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("the genuine wheel delivered nothing to " + topic);
            }
            Thread.sleep(50);
        }
    }

    private static void awaitDispatch(DefaultMessageStore store) throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(20);
        }
    }

    private static void writeTopics(String root) throws Exception {
        TopicConfigSerializeWrapper wrapper = new TopicConfigSerializeWrapper();
        ConcurrentMap<String, TopicConfig> table = new ConcurrentHashMap<>();
        for (String name : new String[] {"orders", "late", "payments", "unused"}) {
            TopicConfig topic = new TopicConfig(name, 4, 4, 6);
            table.put(name, topic);
        }
        table.put("reminders", typed("reminders", "message.type", "DELAY"));
        table.put("batches", typed("batches", "queue.type", "BatchCQ"));
        table.put("TBW102", new TopicConfig("TBW102", 8, 8, 7));
        wrapper.setTopicConfigTable(table);
        wrapper.setDataVersion(new DataVersion());
        Files.writeString(Path.of(root, "config", "topics.json"), wrapper.toJson(true));
    }

    private static TopicConfig typed(String name, String attribute, String value) {
        TopicConfig topic = new TopicConfig(name, 1, 1, 6);
        topic.setAttributes(new HashMap<>(Map.of(attribute, value)));
        return topic;
    }
}
