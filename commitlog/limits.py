"""The limits and the default settings of the product, in one place.

_MAX, _MIN    a bound; the unit stands before it (BODY_BYTES_MAX), else it is a number of things
_DEFAULT      a setting or an attribute that is not given
_MS, _BYTES   a span, a size

A limit that only one module uses is defined in that module. The limits of a message are imported here,
because user processes check messages by the same limits.
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

BODY_UNPACKED_BYTES_MAX = 16 * BODY_BYTES_MAX  # by a tool
BODY_UNPACKED_FOR_CLIENT_BYTES_MAX = BODY_BYTES_MAX  # by a receive: 11 ms of the event loop
PROPERTIES_STORED_BYTES_MAX = 32_767
TAG_BYTES_MAX = PROPERTIES_USER_BYTES_MAX  # sent, or asked for
RECORD_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024

GROUP_CHARACTERS_MAX = 120
LITE_TOPIC_BYTES_DEFAULT = 64
LITE_TOPIC_BYTES_MAX = 200  # one byte tells its length in records of leases
LITE_TOPICS_MAX = 100_000
LITE_SUBSCRIPTIONS_PER_CLIENT_MAX = 2_000
LITE_SUBSCRIPTIONS_MAX = 500_000
LITE_SILENT_MS_MAX = 120_000
LITE_MOVED_MAX = 100_000
TOPICS_MAX = 100_000
TOPICS_CACHED = 16_384  # topics whose encoded forms are kept ready: some MB
SUBSCRIPTIONS_MAX = 100_000  # of groups to topics, and as many policies of groups
RECENT_IDS_SPILLED_MAX = 1 << 18  # ids outside of their buckets; each has about 230 bytes in memory
SAME_ID_READ_MAX = 256  # records of one id that a repeated send is compared with, the newest
HALVES_WAITING_MAX = 1_000_000  # open or expired; each has about 600 bytes in memory, with its receipt
RECENT_HALVES_BYTES_MAX = 8 * 1024 * 1024  # remembered as they came; a commit of another reads the log
QUEUE_COUNT_DEFAULT = 4
QUEUE_COUNT_MAX = 1024

SEGMENT_BYTES_DEFAULT = 1024 * 1024 * 1024
SEGMENT_BYTES_SMALL = 16 * 1024 * 1024
SEGMENT_BYTES_MIN = 8 * 1024 * 1024  # what the broker chooses at least; room for one of the largest records
QUEUE_FILE_ENTRIES = 300_000
QUEUE_FILES_COMPARED_BYTES = 4 * 1024 * 1024  # with their CRCs, by burials of a tick, or one file: 10 ms
TAIL_ENTRIES_MAX = 256  # of a queue in memory and in snapshots only: 5 KiB, more goes to its file
TAILS_BYTES_MAX = 32 * 1024 * 1024  # of all queues, besides tails of few entries
REFUSED_TAIL_BYTES_MAX = 256 * 1024  # of a queue whose file cannot be written, before its tail is let go of
CUT_QUEUES_MAX = 100  # which a cut of the log looks at in one turn: 14 to 34 ms with all entries in files
CUT_QUEUE_BYTES = 64 * 1024  # of a file that was not compared yet: they cost as much as a queue
CUT_QUEUE_GROUPS = 25  # groups that receive a queue: so many cost as much as a queue
CUT_ROWS_PER_RECORD_MAX = 5_000  # of what groups missed, in a record of retention
FILES_OPEN_MAX = 2_048  # of a store; a broker's connections need descriptors, too
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
RECEIVE_BYTES_MAX = 8 * 1024 * 1024  # of one answer; it has one message at least, whatever that has
ANSWERS_BYTES_MAX = 256 * 1024 * 1024  # of messages in all answers to receives that are not read yet
ENTRIES_PER_REQUEST_MAX = 1_024
FIELDS_PER_REQUEST_MAX = 32_768  # of messages within messages, too
POLLS_PER_CLIENT_MAX = 1_024
LONG_POLL_MS = 20_000  # a longer one is cut to it
LEASE_MS_DEFAULT = 60_000  # of a receive that does not say
POLLS_MAX = 16_384
POLLS_PER_ADDRESS_MAX = POLLS_MAX // 2  # all clients behind a proxy have one address; half is left to others
STREAMS_PER_CLIENT_MAX = 16  # Telemetry streams; the oldest ends when one more comes
LENT_PER_CLIENT_MAX = 1_024  # groups and topics of which a client's last answer is remembered
COMMANDS_WAITING_MAX = 1_000  # that a client has yet to read from its Telemetry stream
COMMANDS_WAITING_BYTES_MAX = 8 * 1024 * 1024  # of one stream; it takes a command while less waits
COMMANDS_WAITING_ALL_BYTES_MAX = 64 * 1024 * 1024
CLIENT_SERIES_MAX = 50_000  # what all clients together may have measured: 40 MB
CLIENT_SERIES_EACH_MAX = 256
CLIENTS_MAX = 50_000
CLIENTS_PER_ADDRESS_MAX = CLIENTS_MAX // 2  # likewise
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
SCANNED_PER_RECEIVE_MAX = 300  # messages, or work that takes as long, before others have their turn
WORK_NS = 20_000  # one unit of that work: what a small message costs to read and judge
WORK_BYTES = 16 * 1024  # of a record, which cost as much to read and check
FILTER_CHARACTERS_MAX = 4_096
FILTER_TAGS_MAX = 2_048
FILTER_DEPTH_MAX = 50
FILTER_TERMS_MAX = 128
FILTER_MARKS_MAX = 1_024  # opening parentheses and commas: each takes the parser 8 us
FILTER_PASSES_MAX = 128  # over one property by all CONTAINS together: 8 ms for 16 KiB
FILTER_NUMBER_CHARACTERS_MAX = 128
FILTER_NUMBERS_KEPT_MAX = 4_096
FILTERS_KEPT_MAX = 512
FILTERS_PER_GROUP_MAX = 8  # on a topic; each message that a receive does not match is judged by all of them
FILTERS_WORK_MAX = 900  # of those eight, for one message with properties of 16 KiB, in WORK_NS: 18 ms
FILTERS_BYTES_MAX = 64 * 1024 * 1024  # of the filters of all groups
FILTER_IDLE_MS = 5 * 60_000  # a rolling update is over, and a client that was killed is back
FILTER_STEP_MS = 60_000  # the longest time between two receives of a group that counts as idle time
FILTER_LOOK_MS = 10_000
FILTER_SETTINGS_MS = 6 * 60_000  # official clients say their settings again every 5 minutes, Go's no sooner
FILTER_CLIENT_MS = 120_000  # without a heartbeat a client does not hold its filter any longer
FILTER_CLIENTS_MAX = 10_000  # of which it is remembered that they used a filter last

CHECK_IMMUNITY_MS = 6_000
CHECK_INTERVAL_MS = 10_000
CHECK_INTERVAL_MS_MAX = 300_000
CHECK_COUNT_DEFAULT = 15
CHECK_COUNT_MAX = 10_000
CHECK_IMMUNITY_MS_MAX = 24 * 3_600_000
CHECKS_WOKEN_MAX = 32  # halves that one producer's coming wakes; each that is asked wakes one more
HALVES_LOOKED_AT_ONCE = 250
HALVES_KEPT_LOOKED_AT_ONCE = 20_000  # that a cut has passed: whether their records are kept
CHECKS_READ_PER_TICK_BYTES_MAX = 8 * 1024 * 1024

CLOCK_OFFSET_MS_MAX = 10 * DELAY_MS_MAX
DEDUPE_MS = 600_000
TIMER_HISTORY_MS = 7 * 86_400_000
DELIVERIES_PER_TICK_MAX = 2_000
SCHEDULER_PER_TICK_MAX = 500  # leases that end, halves to be checked: 10 to 20 us each
TIMER_RUN_MIN = 32  # timers that are due together are delivered as columns from here on

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
OPEN_RECORD_BYTES_MAX = 1024 * 1024  # what groups finish in a turn is several records beyond it
UNFLUSHED_BYTES_MAX = 4 * 1024 * 1024  # what the broker itself appends waits beyond it
REQUEST_BYTES_MAX = 32 * 1024 * 1024
CALLERS_UNFLUSHED_BYTES_MAX = 64 * 1024 * 1024  # what callers append waits beyond it
CALLERS_UNFLUSHED_RECORD_BYTES = 20 * 1024  # what a record counts at least: all become visible in one turn
CALLERS_WAITING_BYTES_MAX = 64 * 1024 * 1024  # and is refused beyond that
CALLS_PER_TURN_MAX = (
    256  # or one call of several messages; the others of a turn of the loop wait for the next
)
CALLS_PER_TURN_BYTES_MAX = 8 * 1024 * 1024  # of their requests, or one message
CALLER_WAITING_BYTES = 1024  # what a waiting call counts besides its message
TIMERS_PER_TOPIC_MAX = 200_000_000
CLOCK_BACK_MS_MIN = 50
CLOCK_JUMP_MS_MIN = 1_000
LATE_MS_MIN = 50

LOOK_BYTES_MAX = 4 * 1024 * 1024  # of bodies in an answer to who looks; it has one message at least
HEADERS_BYTES_MAX = 16 * 1024
STRANGER_MS_MAX = 10_000
STRANGERS_PER_ADDRESS_MAX = 256

CONNECTION_STREAMS_MAX = 2 * POLLS_PER_CLIENT_MAX  # at once: long polls, and all else beside them
CLIENTS_PER_CONNECTION_MAX = CONNECTION_STREAMS_MAX  # a connected client has a stream open, at least
STREAM_WINDOW_BYTES = 1024 * 1024  # of a request that nobody has read yet
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
CONNECTION_HEADERS_BYTES_MAX = 2 * 1024 * 1024  # of the calls that are open; who says more is refused as well
HEADERS_COUNT_MAX = 128  # fields of a block
HEADER_BLOCK_BYTES_MAX = 2 * HEADERS_BYTES_MAX  # up to it a block is refused, beyond it hung up on
FRAME_MS_MAX = 20_000  # a frame, a header block of several and a greeting have come whole until then
IDLE_FRAMES_MAX = 2_000  # that bring nothing forward, at once
IDLE_FRAMES_PER_SECOND = 100
IDLE_DATA_BYTES_MAX = 16  # a piece of a body that has no more brings nothing forward
PING_INTERVAL_MS_MIN = 10_000
WORK_PER_TURN_MAX = 32  # frames, and what else takes some 10 us, of a connection in a turn of the loop
REQUEST_MS_MAX = 30_000  # for a request to come, and as long as its bytes take at the least speed
REQUEST_BYTES_PER_SECOND_MIN = 8 * 1024
REQUESTS_BYTES_MAX = 8 * REQUEST_BYTES_MAX  # of requests that have not come whole, or wait in a stream
REQUESTS_PER_CONNECTION_BYTES_MAX = 2 * REQUEST_BYTES_MAX
REQUEST_UNPACKED_BYTES_MAX = 2 * BODY_BYTES_MAX  # of a message that is compressed
UNPACKED_RATIO_MAX = 32  # what a message has beyond it came from nothing
UNPACKED_BYTES_FREE = 512 * 1024  # and so much of that at most
UNPACKED_PER_TURN_BYTES = 512 * 1024  # of a connection in a turn of the loop, or one message
UNPACKED_BYTES_PER_FRAME = 1024  # that came from nothing count as a frame that brings nothing forward
QUESTION_BYTES_MAX = 64 * 1024  # of a request whose answer is a stream, for it is kept until that ends
CONNECTION_UNREAD_BYTES_MAX = 64 * 1024 * 1024  # of answers that a connection's client has yet to read
UNREAD_BYTES_MAX = ANSWERS_BYTES_MAX + COMMANDS_WAITING_ALL_BYTES_MAX  # of all; who has most is hung up on
UNREAD_MS_MAX = 60_000  # in which a client reads nothing of what waits for it
WATCHES_MAX = 16_384  # of health
HANDSHAKES_MAX = 64  # of TLS at once; one that is slow lets others begin beside it
HANDSHAKE_SLOT_MS_MAX = 500
HANDSHAKE_MS_MAX = 10_000

HTTP_BODY_BYTES_MAX = 512 * 1024  # a schedule of 64 KiB fits with every character escaped
HTTP_MESSAGES_BYTES_MAX = 6 * 1024 * 1024  # BODY_BYTES_MAX in base64, and properties; at worst 16 ms to parse
HTTP_BODIES_BYTES_MAX = 64 * 1024 * 1024  # of all requests under way together
HTTP_BODY_VALUES_MAX = 10_000  # in JSON, also names and brackets
HTTP_FIELDS_MAX = 5_000  # checked in one call; 1,000 that are wrong take 1 ms to tell
HTTP_TIMERS_VALUES_MAX = 100_000
HTTP_BODY_MS_MAX = 30_000
HTTP_HEAD_MS_MAX = 10_000
HTTP_CONNECTIONS_MAX = 2_048
HTTP_CONNECTIONS_PER_ADDRESS_MAX = 1_536
HTTP_POLLS_MAX = 1_536  # long polls that are open; the other connections are left to calls that do not wait
HTTP_POLLS_PER_ADDRESS_MAX = 1_152
HTTP_FORWARDED_MAX = 256  # requests that a follower has open at the leader, a thread each
TASK_SLICE = 50
DEAD_LETTERS_LOOKED_AT_ONCE = 32
DEAD_LETTERS_LOOKED_AT_MAX = 50_000
TIMERS_LOOKED_AT_FIRST = 250
TIMERS_LOOKED_AT_MIN = 64
TIMERS_LOOK_WORK_MAX = 250  # records of timers that are read in one go, in WORK_NS
TIMERS_LOOKED_AT_MAX = 64_000
TASKS_RUNNING_MAX = 4
TASKS_KEPT_MAX = 100
TIMER_BATCH_MAX = 1_000
TIMER_WINDOWS_MAX = 10_000
REASON_CHARACTERS_MAX = 1_000
DEAD_REASON_CHARACTERS_MAX = 200  # of a consumer; a property of the dead letter, behind 16 KiB of its own

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
