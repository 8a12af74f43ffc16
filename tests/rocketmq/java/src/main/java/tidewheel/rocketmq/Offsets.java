package tidewheel.rocketmq;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** config/consumerOffset.json as a broker's ConsumerOffsetManager writes it. */
public final class Offsets extends RemotingSerializable {
    private ConcurrentMap<String, ConcurrentMap<Integer, Long>> offsetTable = new ConcurrentHashMap<>();

    public ConcurrentMap<String, ConcurrentMap<Integer, Long>> getOffsetTable() {
        return offsetTable;
    }

    public void setOffsetTable(ConcurrentMap<String, ConcurrentMap<Integer, Long>> offsetTable) {
        this.offsetTable = offsetTable;
    }

    void put(String topic, String group, int queueId, long offset) {
        offsetTable.computeIfAbsent(topic + "@" + group, key -> new ConcurrentHashMap<>()).put(queueId, offset);
    }
}
