package tidewheel.rocketmq;

import com.alibaba.fastjson2.JSON;
import java.io.File;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerMetrics;

/** Opens a genuine store with small files, and its timer wheel. */
final class Stores {
    static final int SEGMENT_BYTES = 64 * 1024;
    private static final int INDEX_SLOTS = 1000;

    private Stores() {
    }

    static MessageStoreConfig config(String root) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(SEGMENT_BYTES);
        config.setMaxHashSlotNum(INDEX_SLOTS);
        config.setMaxIndexNum(INDEX_SLOTS * 4);
        config.setMappedFileSizeTimerLog(1024 * 1024);
        config.setFlushDiskType(FlushDiskType.SYNC_FLUSH);
        config.setEnableCompaction(false);
        config.setHaListenPort(0);
        config.setCleanFileForciblyEnable(false);
        config.setDiskMaxUsedSpaceRatio(99);
        return config;
    }

    static DefaultMessageStore open(MessageStoreConfig config) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager(broker), (topic, queue, offset, code, time, map, properties) -> { },
            broker, topics(config.getStorePathRootDir()));
        if (!store.load()) {
            throw new IOException("the genuine store refused to load " + config.getStorePathRootDir());
        }
        return store;
    }

    static TimerMessageStore openTimers(DefaultMessageStore store, MessageStoreConfig config) throws Exception {
        String folder = config.getStorePathRootDir() + File.separator + "config" + File.separator;
        TimerCheckpoint checkpoint = new TimerCheckpoint(folder + "timercheck");
        TimerMetrics metrics = new TimerMetrics(folder + "timermetrics");
        TimerMessageStore timers =
            new TimerMessageStore(store, config, checkpoint, metrics, store.getBrokerStatsManager());
        store.setTimerMessageStore(timers);
        if (!timers.load()) {
            throw new IOException("the genuine timer store refused to load");
        }
        return timers;
    }

    /** The topics of config/topics.json, read as a broker reads them. */
    static ConcurrentMap<String, TopicConfig> topics(String root) throws IOException {
        Path file = Path.of(root, "config", "topics.json");
        if (!Files.exists(file)) {
            return new ConcurrentHashMap<>();
        }
        return TopicConfigSerializeWrapper.fromJson(Files.readString(file), TopicConfigSerializeWrapper.class)
            .getTopicConfigTable();
    }

    static InetSocketAddress host(String address, int port) {
        return new InetSocketAddress(address, port);
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    /** One JSON object on a line of its own. */
    static void print(Map<String, Object> line) {
        System.out.println(JSON.toJSONString(line));
    }
}
