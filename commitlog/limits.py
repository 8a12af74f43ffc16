"""Limits and default settings of the broker.

_MAX, _MIN    a limit; the name includes the unit (BODY_BYTES_MAX), or else the limit is a number of items
_DEFAULT      the default value of a setting or attribute
_MS, _BYTES   a duration in milliseconds, or a size in bytes

Limits of a single module are defined in that module. The message limits come from the `tidewheel` package,
because clients also check them.
"""

from __future__ import annotations

from tidewheel.message_rules import (
    BODY_BYTES_MAX as BODY_BYTES_MAX,
)
from tidewheel.message_rules import (
    DELAY_MS_MAX as DELAY_MS_MAX,
)
from tidewheel.message_rules import (
    MESSAGE_GROUP_BYTES_MAX as MESSAGE_GROUP_BYTES_MAX,
)
from tidewheel.message_rules import (
    MESSAGE_ID_CHARACTERS_MAX as MESSAGE_ID_CHARACTERS_MAX,
)
from tidewheel.message_rules import (
    PROPERTIES_USER_BYTES_MAX as PROPERTIES_USER_BYTES_MAX,
)
from tidewheel.message_rules import (
    PROPERTIES_USER_COUNT_MAX as PROPERTIES_USER_COUNT_MAX,
)
from tidewheel.message_rules import TIME_DIGITS_MAX as TIME_DIGITS_MAX
from tidewheel.message_rules import (
    TIMER_NAME_CHARACTERS_MAX as TIMER_NAME_CHARACTERS_MAX,
)
from tidewheel.message_rules import TOPIC_CHARACTERS_MAX as TOPIC_CHARACTERS_MAX
from tidewheel.message_rules import WALL_MS_MIN as WALL_MS_MIN

BODY_UNPACKED_BYTES_MAX = 16 * BODY_BYTES_MAX  # The limit for tools that decompress bodies.
BODY_UNPACKED_FOR_CLIENT_BYTES_MAX = BODY_BYTES_MAX  # Decompressing such a body takes 11 ms.
PROPERTIES_STORED_BYTES_MAX = 32_767
TAG_BYTES_MAX = PROPERTIES_USER_BYTES_MAX  # The limit applies to tags in messages and filters.
RECORD_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024

GROUP_CHARACTERS_MAX = 120
LITE_TOPIC_BYTES_DEFAULT = 64
LITE_TOPIC_BYTES_MAX = 200  # The length field in a lease record has one byte.
LITE_TOPICS_MAX = 100_000
LITE_SUBSCRIPTIONS_PER_CLIENT_MAX = 2_000
LITE_SUBSCRIPTIONS_MAX = 500_000
LITE_SILENT_MS_MAX = 120_000
LITE_MOVED_MAX = 100_000
TOPICS_MAX = 100_000
# The maximum number of topic names in the cache of encoded names, which uses a few MB.
TOPICS_CACHED = 16_384
SUBSCRIPTIONS_MAX = 100_000  # The number of group policies has the same limit.
RECENT_IDS_SPILLED_MAX = 1 << 18  # An ID that is stored outside its bucket uses about 230 bytes.
SAME_ID_READ_MAX = 256  # The maximum number of records compared with a repeated send.
# The limit includes expired half messages. Each half message uses about 600 bytes of memory.
HALVES_WAITING_MAX = 1_000_000
RECENT_HALVES_BYTES_MAX = 8 * 1024 * 1024  # Older half messages are read from the log.
QUEUE_COUNT_DEFAULT = 4
QUEUE_COUNT_MAX = 1024

SEGMENT_BYTES_DEFAULT = 1024 * 1024 * 1024
SEGMENT_BYTES_SMALL = 16 * 1024 * 1024
SEGMENT_BYTES_MIN = 8 * 1024 * 1024  # A segment must have room for the largest record.
QUEUE_FILE_ENTRIES = 300_000
# Each tick verifies at most this number of bytes, which takes 10 ms, but at least one file.
QUEUE_FILES_COMPARED_BYTES = 4 * 1024 * 1024
TAIL_ENTRIES_MAX = 256  # Longer tails (more than 5 KiB) are written to the queue file.
# The limit applies to the tails of all queues together, excluding tails with few entries.
TAILS_BYTES_MAX = 32 * 1024 * 1024
REFUSED_TAIL_BYTES_MAX = 256 * 1024  # A longer tail is dropped if its queue file cannot be written.
CUT_QUEUES_MAX = 100  # Processing the queues takes 14 to 34 ms if all entries are in files.
CUT_QUEUE_BYTES = 64 * 1024  # Each 64 KiB of unverified file data is counted as one queue.
CUT_QUEUE_GROUPS = 25  # Each set of 25 groups is counted as one queue.
CUT_ROWS_PER_RECORD_MAX = 5_000  # The maximum number of rows for missed messages in a record.
FILES_OPEN_MAX = 2_048  # The limit excludes descriptors used by connections.
FLUSHES_IN_FLIGHT_MAX = 3
SNAPSHOT_LOG_BYTES = 64 * 1024 * 1024
REPLAYED_BETWEEN_SPILLS = 1_000
SNAPSHOT_LOG_BYTES_MAX = 2 * SNAPSHOT_LOG_BYTES

USER_COUNT_MAX = 10_000
RULES_PER_USER_MAX = 1_000
TOKENS_PER_USER_MAX = 100
TOKEN_COUNT_MAX = 10_000
REFUSALS_KEPT = 1_000

RECEIVE_BATCH_MAX = 32
RECEIVE_BYTES_MAX = 8 * 1024 * 1024  # A response may always contain one message.
ANSWERS_BYTES_MAX = 256 * 1024 * 1024  # The maximum total size of unread receive responses.
ENTRIES_PER_REQUEST_MAX = 1_024
FIELDS_PER_REQUEST_MAX = 32_768  # The fields of nested messages are counted.
POLLS_PER_CLIENT_MAX = 1_024
LONG_POLL_MS = 20_000  # The maximum duration of a long poll.
LEASE_MS_DEFAULT = 60_000  # The default invisible duration of a receive.
POLLS_MAX = 16_384
# At most half of the polls may come from the same address, which may be that of a proxy.
POLLS_PER_ADDRESS_MAX = POLLS_MAX // 2
STREAMS_PER_CLIENT_MAX = 16  # Opening another Telemetry stream closes the oldest stream.
LEASES_PER_CLIENT_MAX = 1_024  # The maximum number of (group, topic) pairs with a stored response.
COMMANDS_WAITING_MAX = 1_000  # The maximum number of unread commands in a client's Telemetry stream.
# A command is accepted if the unread commands in the stream are below this limit.
COMMANDS_WAITING_BYTES_MAX = 8 * 1024 * 1024
COMMANDS_WAITING_ALL_BYTES_MAX = 64 * 1024 * 1024
CLIENT_SERIES_MAX = 50_000  # The limit applies to all clients together. The series use 40 MB.
CLIENT_SERIES_EACH_MAX = 256
CLIENTS_MAX = 50_000
CLIENTS_PER_ADDRESS_MAX = CLIENTS_MAX // 2  # At most half of the clients may use the same address.
INVISIBLE_MS_MIN = 10_000
INVISIBLE_MS_MAX = 12 * 3_600_000
AUTO_RENEW_LEASE_MS = 30_000
AUTO_RENEW_MS_MAX = 3 * 3_600_000
ATTEMPTS_DEFAULT = 17
ATTEMPTS_MAX = 1_000
RETRY_AFTER_MS = (
    1_000,
    5_000,
    10_000,
    30_000,
    *(minutes * 60_000 for minutes in (*range(1, 11), 20, 30, 60, 120)),
)
IN_FLIGHT_PER_QUEUE_MAX = 10_000
PARKED_PER_QUEUE_MAX = 100_000
SCANNED_PER_RECEIVE_MAX = 300  # After this number of work units, a receive yields to other receives.
WORK_NS = 20_000  # A unit of work is the time required to read and check a small message.
WORK_BYTES = 16 * 1024  # The number of record bytes that are read and checked in one unit of work.
FILTER_CHARACTERS_MAX = 4_096
FILTER_TAGS_MAX = 2_048
FILTER_DEPTH_MAX = 50
FILTER_TERMS_MAX = 128
FILTER_MARKS_MAX = 1_024  # Parsing an opening parenthesis or a comma takes 8 us.
FILTER_PASSES_MAX = 128  # This number of passes over a 16 KiB property takes 8 ms.
FILTER_NUMBER_CHARACTERS_MAX = 128
FILTER_NUMBERS_KEPT_MAX = 4_096
FILTERS_KEPT_MAX = 512
# The limit applies to each topic. A message skipped by a receive is checked against all filters of the group.
FILTERS_PER_GROUP_MAX = 8
FILTERS_WORK_MAX = 900  # The unit is WORK_NS per 16 KiB message. The filters of a group take up to 18 ms.
FILTERS_BYTES_MAX = 64 * 1024 * 1024  # The maximum total size of the filters of all groups.
# The interval is longer than a rolling update or the restart of a killed client.
FILTER_IDLE_MS = 5 * 60_000
FILTER_STEP_MS = 60_000  # Longer intervals between receives are not counted as idle time.
FILTER_CHECK_MS = 10_000
FILTER_SETTINGS_MS = 6 * 60_000  # Official clients send their settings again after 5 minutes or more.
FILTER_CLIENT_MS = 120_000  # The filter of a client is released after this time without a heartbeat.
FILTER_CLIENTS_MAX = 10_000  # The maximum number of clients whose last filter is stored.

CHECK_IMMUNITY_MS = 6_000
CHECK_INTERVAL_MS = 10_000
CHECK_INTERVAL_MS_MAX = 300_000
CHECK_COUNT_DEFAULT = 15
CHECK_COUNT_MAX = 10_000
CHECK_IMMUNITY_MS_MAX = 24 * 3_600_000
# The maximum number of transaction check-backs triggered by a new producer. Each one triggers another.
CHECKS_WOKEN_MAX = 32
HALVES_EXAMINED_AT_ONCE = 250
HALVES_KEPT_EXAMINED_AT_ONCE = 20_000  # The limit applies to half messages in keep files.
CHECKS_READ_PER_TICK_BYTES_MAX = 8 * 1024 * 1024

CLOCK_OFFSET_MS_MAX = 10 * DELAY_MS_MAX
DEDUPE_MS = 600_000
TIMER_HISTORY_MS = 7 * 86_400_000
DELIVERIES_PER_TICK_MAX = 2_000
RELEASE_PER_SECOND_MAX = 1_000_000
SCHEDULER_PER_TICK_MAX = 500  # The limit applies to expired leases and transaction check-backs.
TIMER_RUN_MIN = 32  # The minimum number of due timers that are delivered as columns.

SCHEDULE_COUNT_MAX = 10_000
SCHEDULE_NAME_CHARACTERS_MAX = 100
SCHEDULE_CRON_CHARACTERS_MAX = 256
SCHEDULE_BODY_BYTES_MAX = 64 * 1024
SCHEDULE_BODIES_BYTES_MAX = 64 * 1024 * 1024
SCHEDULE_LATE_MS_MAX = 5_000
SCHEDULE_MISSED_COUNT_DEFAULT = 100
SCHEDULE_MISSED_COUNT_MAX = 1_000
SCHEDULE_FULL_RETRY_MS = 10_000
SCHEDULE_PREVIEW_COUNT_MAX = 100
SCHEDULE_SEARCHES_PER_TICK_MAX = 4_000
SCHEDULE_SEARCH_MS = 9 * 366 * 86_400_000
RECURRENCES_KEPT_MAX = 1_024
OPEN_RECORD_BYTES_MAX = 1024 * 1024  # Larger records are split.
UNFLUSHED_BYTES_MAX = 4 * 1024 * 1024  # Above this limit, internal appends wait.
REQUEST_BYTES_MAX = 32 * 1024 * 1024
CALLERS_UNFLUSHED_BYTES_MAX = 64 * 1024 * 1024  # Above this limit, client appends wait.
CALLERS_UNFLUSHED_RECORD_BYTES = 20 * 1024  # The minimum size that is counted for a record.
CALLERS_WAITING_BYTES_MAX = 64 * 1024 * 1024  # Above this limit, client appends are rejected.
# The limit applies to each event loop iteration. A single call may exceed the limit.
CALLS_PER_TURN_MAX = 256
# The limit applies to the total request size in an event loop iteration. A single message may exceed the
# limit.
CALLS_PER_TURN_BYTES_MAX = 8 * 1024 * 1024
CALLER_WAITING_BYTES = 1024  # The overhead that is counted for each waiting call.
TIMERS_PER_TOPIC_MAX = 200_000_000
CLOCK_BACK_MS_MIN = 50
CLOCK_JUMP_MS_MIN = 1_000
LATE_MS_MIN = 50

# The limit applies to the bodies in a query response, which may always contain one message.
QUERY_BYTES_MAX = 4 * 1024 * 1024
HEADERS_BYTES_MAX = 16 * 1024
STRANGER_MS_MAX = 10_000
STRANGERS_PER_ADDRESS_MAX = 256

# The limit applies to the streams of long polls and of all other calls together.
CONNECTION_STREAMS_MAX = 2 * POLLS_PER_CLIENT_MAX
CLIENTS_PER_CONNECTION_MAX = CONNECTION_STREAMS_MAX  # Each client has at least one open stream.
STREAM_WINDOW_BYTES = 1024 * 1024  # The maximum number of unread bytes of a request.
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
# The maximum total size of the headers of all open calls. Above this limit, calls are rejected.
CONNECTION_HEADERS_BYTES_MAX = 2 * 1024 * 1024
HEADERS_COUNT_MAX = 128  # The maximum number of fields in a header block.
HEADER_BLOCK_BYTES_MAX = 2 * HEADERS_BYTES_MAX  # Above this size, a header block closes the connection.
# The time limit applies to a frame, to a header block that spans several frames, and to the preface.
FRAME_MS_MAX = 20_000
IDLE_FRAMES_MAX = 2_000  # The maximum number of frames without progress in a burst.
IDLE_FRAMES_PER_SECOND = 100
IDLE_DATA_BYTES_MAX = 16  # A DATA frame up to this size is not counted as progress.
PING_INTERVAL_MS_MIN = 10_000
# The maximum number of frames processed per connection in an event loop iteration. Other work is counted as
# one frame per 10 us.
WORK_PER_TURN_MAX = 32
REQUEST_MS_MAX = 30_000  # The time to transfer the request at the minimum rate is added to this limit.
REQUEST_BYTES_PER_SECOND_MIN = 8 * 1024
# The limit applies to incomplete requests and to unread messages in request streams.
REQUESTS_BYTES_MAX = 8 * REQUEST_BYTES_MAX
REQUESTS_PER_CONNECTION_BYTES_MAX = 2 * REQUEST_BYTES_MAX
REQUEST_UNPACKED_BYTES_MAX = 2 * BODY_BYTES_MAX  # The maximum decompressed size of a request message.
UNPACKED_RATIO_MAX = 32  # The expected maximum compression ratio.
UNPACKED_BYTES_FREE = 512 * 1024  # The number of bytes that may exceed the expected ratio.
# The maximum number of bytes decompressed per connection in an event loop iteration, or one larger message.
UNPACKED_PER_TURN_BYTES = 512 * 1024
UNPACKED_BYTES_PER_FRAME = 1024  # Each 1 KiB above the ratio is counted as a frame without progress.
QUESTION_BYTES_MAX = 64 * 1024  # A request that opens a stream is kept in memory until the stream ends.
CONNECTION_UNREAD_BYTES_MAX = 64 * 1024 * 1024  # The maximum unread response data of a connection.
# The limit applies to all connections together.
UNREAD_BYTES_MAX = ANSWERS_BYTES_MAX + COMMANDS_WAITING_ALL_BYTES_MAX
UNREAD_MS_MAX = 60_000  # A client must read some response data within this time.
WATCHES_MAX = 16_384  # The maximum number of concurrent health watches.
HANDSHAKES_MAX = 64  # The maximum number of concurrent TLS handshakes, excluding slow handshakes.
HANDSHAKE_SLOT_MS_MAX = 500
HANDSHAKE_MS_MAX = 10_000

HTTP_BODY_BYTES_MAX = 512 * 1024  # A 64 KiB schedule fits even if all characters are escaped.
# The limit allows for properties and a body of BODY_BYTES_MAX in base64. Parsing takes 16 ms.
HTTP_MESSAGES_BYTES_MAX = 6 * 1024 * 1024
HTTP_BODIES_BYTES_MAX = 64 * 1024 * 1024  # The maximum total body size of concurrent requests.
HTTP_BODY_VALUES_MAX = 10_000  # Names and brackets in a JSON body are also counted.
HTTP_FIELDS_MAX = 5_000  # The maximum number of fields in a call. Reporting 1,000 errors takes 1 ms.
HTTP_TIMERS_VALUES_MAX = 100_000
HTTP_BODY_MS_MAX = 30_000
HTTP_HEAD_MS_MAX = 10_000
HTTP_CONNECTIONS_MAX = 2_048
HTTP_CONNECTIONS_PER_ADDRESS_MAX = 1_536
HTTP_POLLS_MAX = 1_536  # The other connections are reserved for calls other than long polls.
HTTP_POLLS_PER_ADDRESS_MAX = 1_152
HTTP_FORWARDED_MAX = 256  # The maximum number of concurrent forwarded requests, which use one thread each.
TOPIC_RETENTION_MS_MIN = 1_000
TOPIC_RETENTION_MS_MAX = 100 * 366 * 86_400_000
TASK_SLICE = 50
FILTER_PROPERTIES_MAX = 20  # The maximum number of properties in a timer filter.
DEAD_LETTERS_EXAMINED_AT_ONCE = 32
DEAD_LETTERS_EXAMINED_MAX = 50_000
TIMERS_QUERY_WORK_MAX = 250  # The unit is WORK_NS. The limit applies to timer records that are read together.
TIMERS_SEARCHED_ROWS_MAX = 16_384  # A search keeps up to this many rows of 64 bytes between its steps.
TASKS_RUNNING_MAX = 4
TASKS_KEPT_MAX = 100
TIMER_BATCH_MAX = 1_000
TIMER_WINDOWS_MAX = 10_000
REASON_CHARACTERS_MAX = 1_000
DEAD_REASON_CHARACTERS_MAX = 200  # The consumer's reason is stored as a property of the dead letter.

TIMER_ROWS_READ_AHEAD_MAX = 250_000
TIMER_ROWS_PER_BATCH_MAX = 65_536
TIMER_BATCH_BYTES_MAX = 8 * 1024 * 1024
TIMERS_FETCHED_AT_ONCE_MAX = 4_096
TIMERS_UNWRITTEN_MAX = 1_000_000
CHECKED_AT_START_BYTES = 64 * 1024 * 1024
CHECKED_AT_ONCE_BYTES = 8 * 1024 * 1024
LOG_CHECKED_SHARE = 4
TIMERS_CHECK_INTERVAL_MS = 86_400_000
FACTS_CHECKED_AT_START_BYTES = 64 * 1024 * 1024
DAMAGE_KEPT_MAX = 1_000
