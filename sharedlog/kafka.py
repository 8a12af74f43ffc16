"""A shared log in an Apache Kafka topic with a single partition.

    append_if       Sends records to the partition leader one at a time. Each response contains the offset of
                    the record.
    read            Returns records in offset order, or no records at the end of the log.
    trim            Deletes all records before an offset.
    check_settings  Reports settings with which Kafka can lose, truncate, or change accepted records.

Rules
1. Kafka does not compare heads, and concurrent appends by two nodes therefore both succeed. The returned
   offset shows whether another node has appended a record in the meantime. If Kafka returns no offset, the
   leader appends a BEAT record and reads the log (`sharedlog.sink`).
2. The adapter sends a record only after Kafka has acknowledged the previous one. If Kafka lost the first
   record of a flush and kept the second, every reader would halt at the gap.
3. If Kafka does not acknowledge a record in time, the adapter purges and discards the producer to prevent
   further delivery attempts. A request in flight may still succeed. Readers ignore the late record if a new
   epoch has begun, and no client has received an acknowledgment for it.
4. The log end offset must never decrease. If Kafka reports a lower end offset for `LOST_SECONDS`, the adapter
   raises `Halted`. The delay is necessary because a former partition leader returns outdated offsets until it
   has received the new leader epoch. If Kafka assigns the offset of an existing record to a new record, the
   adapter raises `Halted` immediately.
5. After a reconnection or a change of the partition leader, the adapter first verifies the last record that
   it has read. If this record has changed, Kafka has lost the end of the log, and other records have been
   appended.
6. If a record fails the CRC check `READS_MAX` times in succession, the adapter raises `LogDamaged`. Records
   before and after the damaged record can still be read.
7. If the topic existed before, the adapter raises `NoCluster` only after `LOST_SECONDS` of "unknown topic"
   errors, because a Kafka broker can return this error until it has loaded the metadata. A topic that was
   deleted and re-created is detected by rule 4.

The consumer joins no group and commits no offsets. Writes, reads, and requests for the log bounds use
separate connections, because Kafka processes the requests of a connection in order and a fetch can block
later requests.

Cost: one round trip and one sync (`flush.messages`) per record. A read at the end of the log also requests
the log bounds. The adapter keeps the records of one read and up to `QUEUE_KIBIBYTES` of prefetched records in
memory. Limitation: after the failure of a Kafka broker, writes can fail until Kafka detects the failure. By
default, this takes about 10 seconds (`broker.session.timeout.ms`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sharedlog.engine import Head, Stored
from sharedlog.errors import (
    ClusterExists,
    EngineRefused,
    EngineUnavailable,
    Halted,
    LogDamaged,
    NoCluster,
    SessionRefused,
)
from sharedlog.fold import READS_MAX
from sharedlog.password_file import PasswordFile
from sharedlog.scrub import CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

MESSAGE_BYTES_MAX: Final = 6 * 1024 * 1024
QUEUE_KIBIBYTES: Final = 16 * 1024
REPLICAS: Final = 3
ANSWER_SECONDS: Final = 5.0
DELIVERY_SECONDS: Final = 15.0
"""Delivery timeout of a record, which exceeds the failover time of a broker or controller."""
LOST_SECONDS: Final = 20.0
"""Time for which the topic must be missing or truncated before the adapter reports a loss."""
BEHIND_SECONDS: Final = 0.1
"""Delay before a failed request for the log bounds is retried."""
PARTITION: Final = 0
_CLIENT: Final = {
    "client.id": "tidewheel",
    "log_level": 0,  # Errors are reported through callbacks and exceptions.
    "allow.auto.create.topics": False,
    "enable.sparse.connections": False,  # If true, the client may query an unresponsive broker for metadata.
    "socket.timeout.ms": 2_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "api.version.request.timeout.ms": 2_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
}
_PRODUCER: Final = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight": 1,
    "linger.ms": 0,
    "compression.type": "none",
    "request.timeout.ms": 2_000,
    "delivery.timeout.ms": int(DELIVERY_SECONDS * 1000),
    "message.max.bytes": MESSAGE_BYTES_MAX,
}
_CONSUMER: Final = {
    "group.id": "tidewheel",  # librdkafka requires a group ID, but the consumer joins no group.
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "isolation.level": "read_uncommitted",
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    "fetch.queue.backoff.ms": 10,
    "max.partition.fetch.bytes": MESSAGE_BYTES_MAX,
    "queued.max.messages.kbytes": QUEUE_KIBIBYTES,
}
_TOPIC: Final = {
    "unclean.leader.election.enable": "false",
    "flush.messages": "1",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
}
_WHY: Final = {
    "unclean.leader.election.enable": "a server without the newest records may lead, and they are lost",
    "flush.messages": "when all servers lose power, records are lost that were accepted",
    "retention.ms": "Kafka deletes records by their age",
    "retention.bytes": "Kafka deletes records by their size",
    "cleanup.policy": "Kafka deletes records by their keys",
    "message.timestamp.type": "the times of records are their writers'",
    "max.message.bytes": "Kafka refuses the largest messages",
    "remote.storage.enable": "records move to a store that this version does not know",
    "min.insync.replicas": "a record counts as accepted that one server alone has",
}


class _OutOfRange(EngineUnavailable):
    """Raised if the requested offset is outside the log."""


class _CorruptBatch(EngineUnavailable):
    """Raised if a received record batch does not match its CRC."""


class LastReadRecord(NamedTuple):
    """The offset, CRC-32, and partition leader epoch of the last record read."""

    offset: int
    crc: int
    leader_epoch: int


class KafkaLog:
    """A shared log in the topic `topic` of a Kafka cluster.

    `servers` lists the bootstrap servers (`HOST:PORT,...`), and `settings` contains additional librdkafka
    settings. If `password_file` is given, the password is read from this file for each new connection. All
    methods are thread-safe, but only one append and one read can run at a time.
    """

    is_dense = False
    """Offsets can have gaps, because the control records of Kafka transactions also occupy offsets."""

    def __init__(
        self,
        servers: str,
        topic: str,
        settings: Mapping[str, str] | None = None,
        password_file: PasswordFile | None = None,
    ) -> None:
        self._servers, self._topic, self._settings = servers, topic, dict(settings or {})
        self._password_file = password_file
        self._writing, self._reading, self._making = Lock(), Lock(), Lock()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._asking: Consumer | None = None
        self._next_offset = -1
        """Offset of the next record that the consumer returns."""
        self._last: LastReadRecord | None = None
        self._is_doubtful = False
        """Whether the last record read must be verified before the next read."""
        self._known_end = 0
        """Highest log end offset that has been observed."""
        self._short_since: float | None = None
        self._missing_since: float | None = None
        """Start of the current series of "unknown topic" errors, in monotonic seconds, or None."""
        self._topic_id = ""
        self._heard = ""
        """The last error that librdkafka reported to the error callback."""
        self._is_refused = False
        """Whether the last connection error was an authentication failure."""

    def create_log(self, head: Head) -> None:
        """Create the topic for a new log.

        Raise `ClusterExists` if the topic exists, or `EngineUnavailable` if Kafka does not respond.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        with self._convert_errors(), self._open_admin() as admin:
            replicas = min(REPLICAS, len(admin.list_topics(timeout=ANSWER_SECONDS).brokers))
            config = {**_TOPIC, "min.insync.replicas": str(min(2, replicas))}
            topic = NewTopic(self._topic, 1, replicas, config=config)
            try:
                _single_result(admin.create_topics([topic], request_timeout=ANSWER_SECONDS))
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ClusterExists(
                        f"Its topic is {self._topic}. Run nodes of it, or name another topic in the URL."
                    ) from error
                raise
        self._wait_for_leader()

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """Append records one at a time, without comparing the head.

        Return the offset of the last record, or None if an offset is unknown or the offsets are not
        contiguous. Raise `EngineRefused` if no record was appended, `Halted` if Kafka has reused the offset
        of an existing record, or `EngineUnavailable` if the result is unknown.
        """
        with self._writing:
            known_end = self._known_end
            offsets: list[int | None] = []
            for one in stored:
                offsets.append(self._append_record(one, is_first=not offsets))
        told = [one for one in offsets if one is not None]
        if told and told[0] < known_end:
            raise Halted(
                f"Kafka gave a new record of {self._topic} the offset {told[0]}, and the log reached to "
                f"{known_end}: it has lost its end."
            )
        self._known_end = max([self._known_end, *(one + 1 for one in told)])
        is_known = len(told) == len(stored) and told == list(range(told[0], told[0] + len(told)))
        return told[-1] if is_known else None

    def append_unchecked(self, stored: bytes) -> None:
        """Append a single record, without comparing the head.

        Raise `EngineRefused` if the record was not appended, or `EngineUnavailable` if the result is unknown.
        """
        with self._writing:
            self._append_record(stored, is_first=True)

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return records in offset order, beginning with the first record at or after `offset`.

        Return at least one record if the log contains a record at or after `offset`. Raise `Halted` if Kafka
        has lost the end of the log, `LogDamaged` if a record cannot be read, or `EngineUnavailable` if Kafka
        does not respond.
        """
        with self._reading, self._convert_errors():
            garbled_count = 0
            while True:
                try:
                    return self._read_records(offset, bytes_max)
                except _CorruptBatch as error:
                    self._close_consumer()
                    garbled_count += 1
                    if garbled_count >= READS_MAX:
                        raise LogDamaged(error.detail, self._next_offset) from error
                except _OutOfRange:
                    self._close_consumer()
                    first, _ = self._request_bounds()
                    if first <= offset:
                        raise
                    offset = first  # The log was trimmed after the bounds had been requested.
                except Exception:
                    self._close_consumer()
                    raise

    def bounds(self) -> tuple[int, int]:
        """Return the log start offset and the log end offset.

        Raise `EngineUnavailable` if Kafka does not respond.
        """
        with self._reading, self._convert_errors():
            return self._request_bounds()

    def trim(self, offset: int) -> None:
        """Delete all records before `offset`. Raise `EngineUnavailable` if Kafka does not respond."""
        first, end = self.bounds()
        if offset > first:
            with self._convert_errors(), self._open_admin() as admin:
                place = self._topic_partition(min(offset, end))
                _single_result(admin.delete_records([place], request_timeout=ANSWER_SECONDS))

    def check_settings(self) -> list[str]:
        """Return a message for each setting that can cause the loss of accepted records.

        Raise `EngineUnavailable` if Kafka does not respond.
        """
        with self._convert_errors(), self._open_admin() as admin:
            return [*self._find_topic_faults(admin), *self._find_setting_faults(admin)]

    def check_append(self) -> None:
        """Check whether an append would succeed, without appending a record.

        Raise `EngineRefused` if the user has no permission to write to the topic. Raise `EngineUnavailable`
        if the partition has no leader or too few in-sync replicas, or if Kafka does not respond.
        """
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import AclOperation

        with self._convert_errors(), self._open_admin() as admin:
            asked = admin.describe_topics(
                TopicCollection([self._topic]),
                include_authorized_operations=True,
                request_timeout=ANSWER_SECONDS,
            )
            found = _single_result(asked)
        partition, may = found.partitions[PARTITION], found.authorized_operations
        if may and AclOperation.WRITE not in may and AclOperation.ALL not in may:
            raise EngineRefused(
                f"This user may not write to {self._topic}. Let it: kafka-acls.sh --bootstrap-server "
                f"{self._servers} --add --allow-principal User:NAME --topic {self._topic} --operation Read "
                "--operation Write --operation Describe --operation DescribeConfigs"
            )
        if partition.leader is None or not partition.isr:
            raise EngineUnavailable(f"No server of Kafka leads {self._topic} now: start those that are away.")
        needed = min(2, len(partition.replicas))
        if len(partition.isr) < needed:
            raise EngineUnavailable(
                f"{len(partition.isr)} of the {len(partition.replicas)} servers that have {self._topic} are "
                f"in step, and it needs {needed}: start those that are away."
            )

    def check_session(self) -> int | None:
        """Open and close a connection. Return None, because Kafka does not report the server time.

        Raise `EngineUnavailable` if Kafka does not respond.
        """
        with self._convert_errors(), self._open_admin() as admin:
            admin.list_topics(self._topic, timeout=ANSWER_SECONDS)
        return None

    def list_risky_settings(self) -> list[str]:
        """Return a message for each setting that is risky but allowed.

        Raise `EngineUnavailable` if Kafka does not respond.
        """
        with self._convert_errors(), self._open_admin() as admin:
            found = admin.list_topics(self._topic, timeout=ANSWER_SECONDS)
        count, partitions, said = len(found.brokers), len(found.topics[self._topic].partitions), []
        if partitions > 1:
            said.append(
                f"The topic {self._topic} has {partitions} partitions, and only the first is the shared log: "
                "what somebody writes into another is not read. See who does: kafka-acls.sh "
                f"--bootstrap-server {self._servers} --list --topic {self._topic}"
            )
        if count < REPLICAS:
            said.append(self._describe_server_count(count))
        return said

    def _describe_server_count(self, count: int) -> str:
        return (
            f"Kafka at {self._servers} has {count} of {REPLICAS} servers: what is acknowledged is on "
            f"{'one machine' if count == 1 else 'two machines, and none may be away'}. Start more, with "
            "kafka-server-start.sh, and give the topic replicas there: kafka-reassign-partitions.sh"
        )

    def count_rows(self, from_record: int) -> CheckResult:
        """Return an empty result, because Kafka never assigns one offset to two records."""
        return CheckResult([], from_record, is_whole=True)

    def abort_calls(self) -> None:
        """Do nothing, because `DELIVERY_SECONDS` and `ANSWER_SECONDS` limit the duration of each call."""

    def close(self) -> None:
        """Close all connections."""
        with self._writing:
            self._discard_producer()
        with self._reading:
            self._close_consumer()
            self._close_bounds_consumer()

    # Methods that write records.

    def _append_record(self, stored: bytes, *, is_first: bool) -> int | None:
        """Append a record, and return the assigned offset.

        Return None if Kafka accepts the record without returning an offset.
        """
        from confluent_kafka import KafkaException

        answers: list[tuple[KafkaError | None, Message]] = []
        self._heard = ""
        producer = self._ensure_producer()
        try:
            producer.produce(
                self._topic,
                stored,
                partition=PARTITION,
                on_delivery=lambda error, message: answers.append((error, message)),
            )
        except (KafkaException, BufferError) as error:
            self._discard_producer()
            raise _make_rejection(is_first, f"{_error_text(error)}") from error
        ends = time.monotonic() + DELIVERY_SECONDS + ANSWER_SECONDS
        while not answers and time.monotonic() < ends:
            try:
                producer.poll(0.1)
            # After this exception, the producer sends no further delivery reports.
            except KafkaException as error:
                self._discard_producer()
                raise self._make_unavailable_error(_error_text(error)) from error
        if not answers or answers[0][0] is not None:
            self._discard_producer()
            raise self._make_delivery_error(answers[0][0] if answers else None, is_first)
        offset = answers[0][1].offset()
        return offset if offset is not None and offset >= 0 else None

    def _make_delivery_error(
        self, error: KafkaError | None, is_first: bool
    ) -> EngineRefused | EngineUnavailable:
        """Return the exception for a delivery that failed or timed out."""
        from confluent_kafka import KafkaError

        surely = {KafkaError.MSG_SIZE_TOO_LARGE}
        # If the error callback was called before, an earlier delivery attempt may have succeeded.
        if not self._heard:
            surely.add(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        if error is not None and error.code() in surely:
            return _make_rejection(is_first, error.str())
        return self._make_unavailable_error(error.str() if error is not None else "no answer in time")

    def _ensure_producer(self) -> Producer:
        """Return the producer. Create it if there is none.

        Readers also call this method, because the first append would otherwise wait 0.5 seconds for a
        connection.
        """
        from confluent_kafka import Producer

        with self._making:
            if self._producer is None:
                self._producer = Producer(self._client_settings(_PRODUCER))
            return self._producer

    def _discard_producer(self) -> None:
        """Discard the producer and all records that have not been sent."""
        from confluent_kafka import KafkaException

        if self._producer is not None:
            with suppress(KafkaException):
                self._producer.purge(blocking=False)
            self._producer = None

    # Methods that read records.

    def _read_records(self, offset: int, bytes_max: int) -> list[Stored]:
        if self._consumer is None or offset != self._next_offset:
            self._seek(offset)
        first = self._next_message(0)
        if first is None:
            _, end = self._check_bounds(offset)
            if end <= self._next_offset:
                return []
            first = self._next_message(ANSWER_SECONDS)
        if first is None:
            raise self._make_unavailable_error(f"record {self._next_offset} is there, and does not come")
        return self._collect_records(first, bytes_max)

    def _collect_records(self, first: Message, bytes_max: int) -> list[Stored]:
        """Return `first` and the subsequent records that the consumer has already fetched."""
        found, total = [], 0
        message: Message | None = first
        while message is not None:
            stored = self._convert_message(message)
            found.append(stored)
            total += len(stored.stored)
            try:
                message = self._next_message(0) if total < bytes_max else None
            except EngineUnavailable:  # The next read raises the error again.
                self._close_consumer()
                break
        return found

    def _convert_message(self, message: Message) -> Stored:
        """Convert a Kafka message to a record.

        If the leader epoch of the partition has increased, first verify the last record read.
        """
        offset, value = message.offset(), message.value() or b""
        leader_epoch, (_, appended_ms) = message.leader_epoch() or 0, message.timestamp()
        assert offset is not None, "a message that was read has an offset"
        if self._last is not None and leader_epoch > self._last.leader_epoch and offset > self._last.offset:
            self._verify_last_record()
            self._assign_offset(offset + 1)
        if self._last is None or offset >= self._last.offset:
            self._last = LastReadRecord(offset, zlib.crc32(value), leader_epoch)
        self._next_offset = offset + 1
        self._known_end = max(self._known_end, offset + 1)
        return Stored(offset, value, appended_ms)

    def _seek(self, offset: int) -> None:
        """Set the consumer's position to `offset`, or to the log start offset if that is higher."""
        first, _ = self._check_bounds(offset)
        if self._is_doubtful:
            self._verify_last_record()
        self._assign_offset(max(first, offset))

    def _verify_last_record(self) -> None:
        """Read the most recent record again, and raise `Halted` if it has changed.

        A CRC mismatch is ignored, because this reader has already read the record. Do nothing if the record
        was trimmed.
        """
        last = self._last
        if last is None or last.offset < self._request_bounds()[0]:
            return
        try:
            message = self._reread_record(last.offset)
        except _CorruptBatch:
            self._last = None
            return
        if message is None:
            raise self._make_unavailable_error(f"record {last.offset}, which was read before, does not come")
        if (message.offset(), zlib.crc32(message.value() or b"")) != (last.offset, last.crc):
            raise Halted(
                f"Record {last.offset} of {self._topic} is not what was read there before: Kafka has lost "
                "the log's end, and it has grown again."
            )
        self._is_doubtful = False

    def _reread_record(self, offset: int) -> Message | None:
        """Return the record at an offset, or None if no record arrives within `ANSWER_SECONDS`.

        Raise `_CorruptBatch` if `READS_MAX` reads fail the CRC check.
        """
        for left in reversed(range(READS_MAX)):
            self._assign_offset(offset)
            try:
                return self._next_message(ANSWER_SECONDS)
            except _CorruptBatch:
                if not left:
                    raise
        return None

    def _assign_offset(self, offset: int) -> None:
        from confluent_kafka import Consumer

        if self._consumer is None:
            self._consumer = Consumer(self._client_settings(_CONSUMER))
            self._ensure_producer()
        self._consumer.assign([self._topic_partition(offset)])
        self._next_offset = offset

    def _next_message(self, seconds: float) -> Message | None:
        """Return the next record, or None if none arrives within `seconds`.

        Raise `EngineUnavailable` if the consumer reports an error.
        """
        from confluent_kafka import KafkaError

        assert self._consumer is not None, "a consumer is assigned before it is asked"
        ends = time.monotonic() + seconds
        while (message := self._consumer.poll(max(0.0, ends - time.monotonic()))) is not None:
            error = message.error()
            if error is None:
                return message
            if error.code() == KafkaError._BAD_MSG:
                raise _CorruptBatch(
                    f"Record {self._next_offset} of {self._topic} cannot be read: {error.str()}."
                )
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise _OutOfRange(f"Kafka at {self._servers} has no such record: {error.str()}")
            # Group authorization errors are ignored, because the consumer does not join a group.
            if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise self._make_unavailable_error(error.str())
        return None

    def _close_consumer(self) -> None:
        """Close the consumer.

        The next consumer must first verify the last record read.
        """
        if self._consumer is not None:
            self._consumer.close()
            self._consumer, self._is_doubtful = None, True

    # Methods that request the log bounds.

    def _request_bounds(self) -> tuple[int, int]:
        """Request the log start offset and the log end offset.

        Retry failed requests for up to `ANSWER_SECONDS`, because a partition can be without a leader for a
        short time. A request is not retried if the topic is unknown and no records have been observed.
        """
        from confluent_kafka import Consumer, KafkaException

        ends = time.monotonic() + ANSWER_SECONDS
        while True:
            if self._asking is None:
                self._asking = Consumer(self._client_settings(_CONSUMER))
            left = max(0.1, ends - time.monotonic())
            try:
                first, end = self._asking.get_watermark_offsets(self._topic_partition(), timeout=left)
                return first, end
            except KafkaException as error:
                self._asking.poll(0)  # This call runs the error callback.
                if time.monotonic() >= ends or (not self._known_end and self._is_topic_unknown(error)):
                    self._close_bounds_consumer()
                    raise
            time.sleep(BEHIND_SECONDS)

    def _check_bounds(self, offset: int) -> tuple[int, int]:
        """Request the log bounds, and verify that the log end offset has not decreased.

        If the log end offset is lower than `offset` or the highest known end offset, raise
        `EngineUnavailable`, or `Halted` after `LOST_SECONDS`.
        """
        known_end = max(offset, self._known_end)
        first, end = self._request_bounds()
        if end >= known_end:
            self._short_since, self._known_end = None, max(self._known_end, end)
            return first, end
        self._close_bounds_consumer()
        now = time.monotonic()
        self._short_since = now if self._short_since is None else self._short_since
        said = f"The topic {self._topic} ends at {end}, and reached to {known_end} before"
        if now - self._short_since >= LOST_SECONDS:
            raise Halted(f"{said}: Kafka has lost the log's end.")
        raise EngineUnavailable(f"{said}: asked anew.")

    def _wait_for_leader(self) -> None:
        ends = time.monotonic() + DELIVERY_SECONDS
        while True:
            try:
                self.bounds()
                return
            except (EngineUnavailable, NoCluster):  # A broker may not have loaded the topic metadata yet.
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)

    def _close_bounds_consumer(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    # Methods that check settings.

    def _find_topic_faults(self, admin: AdminClient) -> list[str]:
        """Return a message if the topic was re-created, and a message if it has too few replicas."""
        from confluent_kafka import TopicCollection

        found = _single_result(
            admin.describe_topics(TopicCollection([self._topic]), request_timeout=ANSWER_SECONDS)
        )
        said, topic_id = [], str(found.topic_id)
        if self._topic_id and topic_id != self._topic_id:
            said.append(
                f"The topic {self._topic} was deleted and made anew: its id is {topic_id}, and was "
                f"{self._topic_id}. What it held is gone: stop the nodes, keep their stores, and see what "
                "each has: tidewheel store verify --store STORE"
            )
        self._topic_id = self._topic_id or topic_id
        replicas = len(found.partitions[0].replicas)
        wanted = min(REPLICAS, len(admin.list_topics(timeout=ANSWER_SECONDS).brokers))
        if replicas < wanted:
            said.append(
                f"The topic {self._topic} lies on {replicas} of {wanted} servers. Give it more: "
                f"kafka-reassign-partitions.sh --bootstrap-server {self._servers} --execute "
                "--reassignment-json-file FILE"
            )
        return said

    def _find_setting_faults(self, admin: AdminClient) -> list[str]:
        """Return a message for each unsafe topic setting, including broker defaults."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        found = _single_result(admin.describe_configs([resource], request_timeout=ANSWER_SECONDS))
        replicas = len(admin.list_topics(self._topic, timeout=ANSWER_SECONDS).brokers)
        wanted = {**_TOPIC, "remote.storage.enable": "false", "min.insync.replicas": str(min(2, replicas))}
        return [
            self._describe_setting(name, found[name].value, value)
            for name, value in wanted.items()
            if name in found and not _is_safe_setting(name, found[name].value, value)
        ]

    def _describe_setting(self, name: str, found: str | None, wanted: str) -> str:
        return (
            f"{name} of the topic {self._topic} is {found}, so {_WHY[name]}. Set it: kafka-configs.sh "
            f"--bootstrap-server {self._servers} --alter --entity-type topics --entity-name {self._topic} "
            f"--add-config {name}={wanted}"
        )

    # Methods that manage connections.

    def _client_settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the librdkafka settings for a new connection, including the settings in `own`."""
        where: dict[str, Any] = {"bootstrap.servers": self._servers, "error_cb": self._record_error}
        if self._password_file is not None:
            where["sasl.password"] = self._password_file.read()
        return {**_CLIENT, **own, **self._settings, **where}

    def _make_admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._client_settings({}))

    @contextmanager
    def _open_admin(self) -> Iterator[AdminClient]:
        """Provide an admin client for one or more requests.

        If a request fails, poll the admin client to run the error callback.
        """
        from confluent_kafka import KafkaException

        admin, self._heard = self._make_admin(), ""
        try:
            yield admin
        except (KafkaException, TimeoutError):
            admin.poll(0)
            raise

    def _record_error(self, error: KafkaError) -> None:
        """Store an error that librdkafka has reported.

        An "all brokers down" error does not replace a more specific error.
        """
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._heard:
            self._heard, self._is_refused = error.str(), error.code() == KafkaError._AUTHENTICATION

    def _topic_partition(self, offset: int = 0) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, PARTITION, offset)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert exceptions raised by the client library.

        Convert "unknown topic" errors to `NoCluster` as described in `_raise_if_topic_unknown`, and other
        errors to `EngineUnavailable`.
        """
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            self._raise_if_topic_unknown(error)
            raise self._make_unavailable_error(_error_text(error)) from error
        except TimeoutError as error:
            raise self._make_unavailable_error("no answer in time") from error
        self._missing_since = None

    def _raise_if_topic_unknown(self, error: KafkaException) -> None:
        """Raise `NoCluster` if `error` means that the topic is unknown.

        If the topic existed before, raise `NoCluster` only when such errors have persisted for
        `LOST_SECONDS`.
        """
        if not self._is_topic_unknown(error):
            self._missing_since = None
            return
        missing = f"Kafka at {self._servers} has no topic {self._topic}"
        if not self._known_end:
            raise NoCluster(f"{missing}.") from error
        now = time.monotonic()
        self._missing_since = now if self._missing_since is None else self._missing_since
        if now - self._missing_since >= LOST_SECONDS:
            raise NoCluster(
                f"{missing}, and had it before, up to record {self._known_end - 1}: it was deleted."
            ) from error

    def _is_topic_unknown(self, error: KafkaException) -> bool:
        """Return whether an error means that the topic does not exist.

        Return False if the topic exists but the partition has no leader.
        """
        from confluent_kafka import KafkaError, KafkaException

        unknown = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION
        if error.args[0].code() not in unknown:
            return False
        try:
            found = self._make_admin().list_topics(self._topic, timeout=ANSWER_SECONDS).topics[self._topic]
        except KafkaException:
            return False
        return found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def _make_unavailable_error(self, reason: str) -> EngineUnavailable:
        heard = f" ({self._heard})" if self._heard and self._heard != reason else ""
        if not (self._heard and self._is_refused):
            return EngineUnavailable(f"Kafka at {self._servers} did not answer: {reason}{heard}")
        file = self._password_file
        where = f" Its password is read from {file} for each connection." if file is not None else ""
        return SessionRefused(f"Kafka at {self._servers} says: {reason}{heard}.{where}")


def _make_rejection(is_first: bool, reason: str) -> EngineRefused | EngineUnavailable:
    """Return the exception for a record that Kafka or the producer has rejected.

    The exception is `EngineRefused` only for the first record of an append. When a later record is rejected,
    the previous ones have already been accepted.
    """
    if is_first:
        return EngineRefused(f"Kafka takes no such record: {reason}")
    return EngineUnavailable(f"Kafka has taken a part of an append: {reason}")


def _is_safe_setting(name: str, found: str | None, wanted: str) -> bool:
    """Return whether the value `found` of a setting is at least as safe as the value `wanted`."""
    if name in ("max.message.bytes", "min.insync.replicas"):
        return int(found or 0) >= int(wanted)
    return found == wanted


def _error_text(error: Exception) -> str:
    return str(error.args[0].str()) if hasattr(error.args[0], "str") else str(error)


def _single_result(futures: Mapping[Any, Future[Any]]) -> Any:
    """Return the result of an admin request that concerns a single resource."""
    (future,) = futures.values()
    return future.result(ANSWER_SECONDS + 1.0)
