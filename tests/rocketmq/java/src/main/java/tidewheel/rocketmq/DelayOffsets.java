package tidewheel.rocketmq;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** config/delayOffset.json as a broker's ScheduleMessageService writes it. */
public final class DelayOffsets extends RemotingSerializable {
    private ConcurrentMap<Integer, Long> offsetTable = new ConcurrentHashMap<>();

    public ConcurrentMap<Integer, Long> getOffsetTable() {
        return offsetTable;
    }

    public void setOffsetTable(ConcurrentMap<Integer, Long> offsetTable) {
        this.offsetTable = offsetTable;
    }
}
