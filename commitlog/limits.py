"""The limits and the default settings of the product, in one place.

_MAX, _MIN    a limit, with the unit before it (BODY_BYTES_MAX), or else a number of items
_DEFAULT      the default of a setting or an attribute
_MS, _BYTES   a duration, a size

A limit that only one module uses is defined in that module. The limits of a message are imported, because
user processes check messages by the same limits.
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

BODY_UNPACKED_BYTES_MAX = 16 * BODY_BYTES_MAX  # the limit of decompression by a tool
BODY_UNPACKED_FOR_CLIENT_BYTES_MAX = BODY_BYTES_MAX  # the limit of decompression by a receive, in 11 ms
PROPERTIES_STORED_BYTES_MAX = 32_767
TAG_BYTES_MAX = PROPERTIES_USER_BYTES_MAX  # the maximum size of a tag in a message or filter
RECORD_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024

GROUP_CHARACTERS_MAX = 120
LITE_TOPIC_BYTES_DEFAULT = 64
LITE_TOPIC_BYTES_MAX = 200  # the length is stored in one byte in lease records
LITE_TOPICS_MAX = 100_000
LITE_SUBSCRIPTIONS_PER_CLIENT_MAX = 2_000
LITE_SUBSCRIPTIONS_MAX = 500_000
LITE_SILENT_MS_MAX = 120_000
LITE_MOVED_MAX = 100_000
TOPICS_MAX = 100_000
TOPICS_CACHED = 16_384  # the number of topics with cached encodings, a few MB in total
SUBSCRIPTIONS_MAX = 100_000  # of groups to topics; also the maximum number of group policies
RECENT_IDS_SPILLED_MAX = 1 << 18  # ids outside of their buckets, with about 230 bytes of memory each
SAME_ID_READ_MAX = 256  # the number of records with one id that are compared with a repeated send
HALVES_WAITING_MAX = 1_000_000  # open and expired half messages, with about 600 bytes of memory each
RECENT_HALVES_BYTES_MAX = 8 * 1024 * 1024  # half messages in memory; commits of others read the log
QUEUE_COUNT_DEFAULT = 4
QUEUE_COUNT_MAX = 1024

SEGMENT_BYTES_DEFAULT = 1024 * 1024 * 1024
SEGMENT_BYTES_SMALL = 16 * 1024 * 1024
SEGMENT_BYTES_MIN = 8 * 1024 * 1024  # the minimum that the broker chooses, with room for the largest record
QUEUE_FILE_ENTRIES = 300_000
QUEUE_FILES_COMPARED_BYTES = 4 * 1024 * 1024  # verified per tick, in 10 ms, but at least one file
TAIL_ENTRIES_MAX = 256  # unwritten entries per queue (5 KiB); longer tails are written to the file
TAILS_BYTES_MAX = 32 * 1024 * 1024  # of all queues, except tails with few entries
REFUSED_TAIL_BYTES_MAX = 256 * 1024  # of a queue whose file cannot be written; a longer tail is dropped
CUT_QUEUES_MAX = 100  # queues per step of a cut, in 14 to 34 ms if all entries are in files
CUT_QUEUE_BYTES = 64 * 1024  # unverified bytes of a file that count as one queue
CUT_QUEUE_GROUPS = 25  # groups of a queue that count as one queue
CUT_ROWS_PER_RECORD_MAX = 5_000  # rows of missed messages in a retention record
FILES_OPEN_MAX = 2_048  # open files of a store; connections also need descriptors
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
RECEIVE_BYTES_MAX = 8 * 1024 * 1024  # per response, which has at least one message of any size
ANSWERS_BYTES_MAX = 256 * 1024 * 1024  # the total of messages in unread responses to receives
ENTRIES_PER_REQUEST_MAX = 1_024
FIELDS_PER_REQUEST_MAX = 32_768  # including the fields of nested messages
POLLS_PER_CLIENT_MAX = 1_024
LONG_POLL_MS = 20_000  # the maximum duration of a long poll
LEASE_MS_DEFAULT = 60_000  # the lease of a receive without an invisible duration
POLLS_MAX = 16_384
POLLS_PER_ADDRESS_MAX = POLLS_MAX // 2  # half of all, as clients behind a proxy share an address
STREAMS_PER_CLIENT_MAX = 16  # Telemetry streams; a further stream ends the oldest stream
LENT_PER_CLIENT_MAX = 1_024  # groups and topics whose last response to a client is stored
COMMANDS_WAITING_MAX = 1_000  # unread commands in the Telemetry stream of a client
COMMANDS_WAITING_BYTES_MAX = 8 * 1024 * 1024  # per stream, which accepts a command below the limit
COMMANDS_WAITING_ALL_BYTES_MAX = 64 * 1024 * 1024
CLIENT_SERIES_MAX = 50_000  # the total of all clients, which take 40 MB
CLIENT_SERIES_EACH_MAX = 256
CLIENTS_MAX = 50_000
CLIENTS_PER_ADDRESS_MAX = CLIENTS_MAX // 2  # half is reserved for other addresses
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
SCANNED_PER_RECEIVE_MAX = 300  # messages, or equivalent work, before other receives run
WORK_NS = 20_000  # one unit of work: the time to read and check a small message
WORK_BYTES = 16 * 1024  # the bytes of a record that take one unit of work to read and check
FILTER_CHARACTERS_MAX = 4_096
FILTER_TAGS_MAX = 2_048
FILTER_DEPTH_MAX = 50
FILTER_TERMS_MAX = 128
FILTER_MARKS_MAX = 1_024  # opening parentheses and commas, each of which takes 8 us to parse
FILTER_PASSES_MAX = 128  # passes of all CONTAINS over one property, 8 ms for 16 KiB
FILTER_NUMBER_CHARACTERS_MAX = 128
FILTER_NUMBERS_KEPT_MAX = 4_096
FILTERS_KEPT_MAX = 512
FILTERS_PER_GROUP_MAX = 8  # filters per topic, all of which check each message that a receive skips
FILTERS_WORK_MAX = 900  # in WORK_NS, for all filters of a group on one message of 16 KiB, 18 ms in total
FILTERS_BYTES_MAX = 64 * 1024 * 1024  # the total of the filters of all groups
FILTER_IDLE_MS = 5 * 60_000  # covers a rolling update and the return of a killed client
FILTER_STEP_MS = 60_000  # the maximum interval between two receives that counts as idle time
FILTER_LOOK_MS = 10_000
FILTER_SETTINGS_MS = 6 * 60_000  # official clients repeat their settings every 5 minutes or later
FILTER_CLIENT_MS = 120_000  # the time without a heartbeat after which a client releases its filter
FILTER_CLIENTS_MAX = 10_000  # the number of clients whose last filter is stored

CHECK_IMMUNITY_MS = 6_000
CHECK_INTERVAL_MS = 10_000
CHECK_INTERVAL_MS_MAX = 300_000
CHECK_COUNT_DEFAULT = 15
CHECK_COUNT_MAX = 10_000
CHECK_IMMUNITY_MS_MAX = 24 * 3_600_000
CHECKS_WOKEN_MAX = 32  # half messages that a new producer wakes; each check-back wakes another
HALVES_LOOKED_AT_ONCE = 250
HALVES_KEPT_LOOKED_AT_ONCE = 20_000  # half messages below a cut, whose records are in keep files
CHECKS_READ_PER_TICK_BYTES_MAX = 8 * 1024 * 1024

CLOCK_OFFSET_MS_MAX = 10 * DELAY_MS_MAX
DEDUPE_MS = 600_000
TIMER_HISTORY_MS = 7 * 86_400_000
DELIVERIES_PER_TICK_MAX = 2_000
RELEASE_PER_SECOND_MAX = 1_000_000
SCHEDULER_PER_TICK_MAX = 500  # expired leases and due check-backs, 10 to 20 us each
TIMER_RUN_MIN = 32  # the minimum number of due timers that are delivered as columns

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
OPEN_RECORD_BYTES_MAX = 1024 * 1024  # the limit above which acknowledgements take several records
UNFLUSHED_BYTES_MAX = 4 * 1024 * 1024  # the limit above which internal appends wait
REQUEST_BYTES_MAX = 32 * 1024 * 1024
CALLERS_UNFLUSHED_BYTES_MAX = 64 * 1024 * 1024  # the limit above which appends of callers wait
CALLERS_UNFLUSHED_RECORD_BYTES = 20 * 1024  # the minimum that a record counts
CALLERS_WAITING_BYTES_MAX = 64 * 1024 * 1024  # the limit above which appends of callers are refused
CALLS_PER_TURN_MAX = 256  # calls per iteration of the event loop, or one call with several messages
CALLS_PER_TURN_BYTES_MAX = 8 * 1024 * 1024  # bytes of requests per iteration, or one message
CALLER_WAITING_BYTES = 1024  # the bytes counted per waiting call, in addition to its message
TIMERS_PER_TOPIC_MAX = 200_000_000
CLOCK_BACK_MS_MIN = 50
CLOCK_JUMP_MS_MIN = 1_000
LATE_MS_MIN = 50

LOOK_BYTES_MAX = 4 * 1024 * 1024  # bodies per response to a query, which has at least one message
HEADERS_BYTES_MAX = 16 * 1024
STRANGER_MS_MAX = 10_000
STRANGERS_PER_ADDRESS_MAX = 256

CONNECTION_STREAMS_MAX = 2 * POLLS_PER_CLIENT_MAX  # concurrent streams, for long polls and all other calls
CLIENTS_PER_CONNECTION_MAX = CONNECTION_STREAMS_MAX  # a connected client has at least one open stream
STREAM_WINDOW_BYTES = 1024 * 1024  # the unread bytes of a request
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
CONNECTION_HEADERS_BYTES_MAX = 2 * 1024 * 1024  # of all open calls; further calls are refused
HEADERS_COUNT_MAX = 128  # the number of fields of a header block
HEADER_BLOCK_BYTES_MAX = (
    2 * HEADERS_BYTES_MAX
)  # blocks up to this size are refused; larger ones end the connection
FRAME_MS_MAX = 20_000  # the time for a whole frame, a header block of several frames, or a preface
IDLE_FRAMES_MAX = 2_000  # frames without progress in a burst
IDLE_FRAMES_PER_SECOND = 100
IDLE_DATA_BYTES_MAX = 16  # a DATA frame up to this size makes no progress
PING_INTERVAL_MS_MIN = 10_000
WORK_PER_TURN_MAX = 32  # frames, or work of 10 us, per connection and iteration of the event loop
REQUEST_MS_MAX = 30_000  # the time for a request, plus the time for its bytes at the minimum rate
REQUEST_BYTES_PER_SECOND_MIN = 8 * 1024
REQUESTS_BYTES_MAX = 8 * REQUEST_BYTES_MAX  # of incomplete requests and unread messages of request streams
REQUESTS_PER_CONNECTION_BYTES_MAX = 2 * REQUEST_BYTES_MAX
REQUEST_UNPACKED_BYTES_MAX = 2 * BODY_BYTES_MAX  # the decompressed size of a message
UNPACKED_RATIO_MAX = 32  # the expected compression ratio of a message
UNPACKED_BYTES_FREE = 512 * 1024  # the allowed bytes above the expected ratio
UNPACKED_PER_TURN_BYTES = 512 * 1024  # per connection and iteration of the event loop, or one message
UNPACKED_BYTES_PER_FRAME = 1024  # bytes above the ratio that count as a frame without progress
QUESTION_BYTES_MAX = 64 * 1024  # of a request that opens a stream, which is kept until the stream ends
CONNECTION_UNREAD_BYTES_MAX = 64 * 1024 * 1024  # the unread bytes of the responses of a connection
UNREAD_BYTES_MAX = ANSWERS_BYTES_MAX + COMMANDS_WAITING_ALL_BYTES_MAX  # of all connections
UNREAD_MS_MAX = 60_000  # the time in which a client must read some bytes of its responses
WATCHES_MAX = 16_384  # concurrent health watches
HANDSHAKES_MAX = 64  # concurrent TLS handshakes; a slow handshake releases its slot
HANDSHAKE_SLOT_MS_MAX = 500
HANDSHAKE_MS_MAX = 10_000

HTTP_BODY_BYTES_MAX = 512 * 1024  # fits a schedule of 64 KiB with every character escaped
HTTP_MESSAGES_BYTES_MAX = 6 * 1024 * 1024  # BODY_BYTES_MAX in base64 with properties, 16 ms to parse
HTTP_BODIES_BYTES_MAX = 64 * 1024 * 1024  # the total of the bodies of concurrent requests
HTTP_BODY_VALUES_MAX = 10_000  # the values of a JSON body, including names and brackets
HTTP_FIELDS_MAX = 5_000  # fields checked per call; reporting 1,000 errors takes 1 ms
HTTP_TIMERS_VALUES_MAX = 100_000
HTTP_BODY_MS_MAX = 30_000
HTTP_HEAD_MS_MAX = 10_000
HTTP_CONNECTIONS_MAX = 2_048
HTTP_CONNECTIONS_PER_ADDRESS_MAX = 1_536
HTTP_POLLS_MAX = 1_536  # open long polls; all other connections are reserved for other calls
HTTP_POLLS_PER_ADDRESS_MAX = 1_152
HTTP_FORWARDED_MAX = 256  # concurrent requests of a follower to the leader, with one thread each
TOPIC_RETENTION_MS_MIN = 1_000
TOPIC_RETENTION_MS_MAX = 100 * 366 * 86_400_000
TASK_SLICE = 50
FILTER_PROPERTIES_MAX = 20  # properties in a filter of timers
DEAD_LETTERS_LOOKED_AT_ONCE = 32
DEAD_LETTERS_LOOKED_AT_MAX = 50_000
TIMERS_LOOKED_AT_FIRST = 250
TIMERS_LOOKED_AT_MIN = 64
TIMERS_LOOK_WORK_MAX = 250  # in WORK_NS, for records of timers that are read at once
TIMERS_LOOKED_AT_MAX = 64_000
TASKS_RUNNING_MAX = 4
TASKS_KEPT_MAX = 100
TIMER_BATCH_MAX = 1_000
TIMER_WINDOWS_MAX = 10_000
REASON_CHARACTERS_MAX = 1_000
DEAD_REASON_CHARACTERS_MAX = 200  # of the reason of a consumer, stored as a property of the dead letter

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
