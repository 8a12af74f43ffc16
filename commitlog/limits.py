"""The limits and the default settings of the product, in one place.

_MAX, _MIN    a limit, with the unit before it (BODY_BYTES_MAX), or else a number of items
_DEFAULT      the value of a setting or an attribute that is not given
_MS, _BYTES   a duration, a size

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

BODY_UNPACKED_BYTES_MAX = 16 * BODY_BYTES_MAX  # decompressed by a tool
BODY_UNPACKED_FOR_CLIENT_BYTES_MAX = BODY_BYTES_MAX  # decompressed by a receive, in 11 ms of the event loop
PROPERTIES_STORED_BYTES_MAX = 32_767
TAG_BYTES_MAX = PROPERTIES_USER_BYTES_MAX  # of a tag in a message or in a filter
RECORD_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024

GROUP_CHARACTERS_MAX = 120
LITE_TOPIC_BYTES_DEFAULT = 64
LITE_TOPIC_BYTES_MAX = 200  # its length has one byte in lease records
LITE_TOPICS_MAX = 100_000
LITE_SUBSCRIPTIONS_PER_CLIENT_MAX = 2_000
LITE_SUBSCRIPTIONS_MAX = 500_000
LITE_SILENT_MS_MAX = 120_000
LITE_MOVED_MAX = 100_000
TOPICS_MAX = 100_000
TOPICS_CACHED = 16_384  # topics with cached encodings, which take some MB
SUBSCRIPTIONS_MAX = 100_000  # of groups to topics, and the same number of group policies
RECENT_IDS_SPILLED_MAX = 1 << 18  # ids outside their buckets, with about 230 bytes of memory each
SAME_ID_READ_MAX = 256  # the newest records of one id with which a repeated send is compared
HALVES_WAITING_MAX = 1_000_000  # open or expired halves, with about 600 bytes each, including receipts
RECENT_HALVES_BYTES_MAX = 8 * 1024 * 1024  # recent halves in memory; commits of other halves read the log
QUEUE_COUNT_DEFAULT = 4
QUEUE_COUNT_MAX = 1024

SEGMENT_BYTES_DEFAULT = 1024 * 1024 * 1024
SEGMENT_BYTES_SMALL = 16 * 1024 * 1024
SEGMENT_BYTES_MIN = 8 * 1024 * 1024  # the minimum that the broker chooses, with room for the largest record
QUEUE_FILE_ENTRIES = 300_000
QUEUE_FILES_COMPARED_BYTES = 4 * 1024 * 1024  # compared with their CRCs in one tick, in 10 ms, or one file
TAIL_ENTRIES_MAX = 256  # of a queue, only in memory and snapshots, 5 KiB; longer tails are written
TAILS_BYTES_MAX = 32 * 1024 * 1024  # of all queues, without tails of few entries
REFUSED_TAIL_BYTES_MAX = 256 * 1024  # of a queue whose file cannot be written; a longer tail is dropped
CUT_QUEUES_MAX = 100  # queues that a cut of the log checks in one turn, in 14 to 34 ms if all are in files
CUT_QUEUE_BYTES = 64 * 1024  # bytes of a file that was not compared yet, which cost as much as a queue
CUT_QUEUE_GROUPS = 25  # groups of a queue, which cost as much as a queue
CUT_ROWS_PER_RECORD_MAX = 5_000  # rows of missed messages in a retention record
FILES_OPEN_MAX = 2_048  # of a store; connections need descriptors, too
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
RECEIVE_BYTES_MAX = 8 * 1024 * 1024  # of one answer, which has at least one message of any size
ANSWERS_BYTES_MAX = 256 * 1024 * 1024  # of messages in all unread answers to receives
ENTRIES_PER_REQUEST_MAX = 1_024
FIELDS_PER_REQUEST_MAX = 32_768  # including the fields of nested messages
POLLS_PER_CLIENT_MAX = 1_024
LONG_POLL_MS = 20_000  # longer polls are cut to this time
LEASE_MS_DEFAULT = 60_000  # for a receive without a lease time
POLLS_MAX = 16_384
POLLS_PER_ADDRESS_MAX = POLLS_MAX // 2  # all clients behind a proxy have one address; half is left to others
STREAMS_PER_CLIENT_MAX = 16  # Telemetry streams; a new stream beyond this ends the oldest
LENT_PER_CLIENT_MAX = 1_024  # groups and topics for which a client's last answer is stored
COMMANDS_WAITING_MAX = 1_000  # unread commands of a client's Telemetry stream
COMMANDS_WAITING_BYTES_MAX = 8 * 1024 * 1024  # of one stream, which accepts a command below this limit
COMMANDS_WAITING_ALL_BYTES_MAX = 64 * 1024 * 1024
CLIENT_SERIES_MAX = 50_000  # of all clients together, 40 MB
CLIENT_SERIES_EACH_MAX = 256
CLIENTS_MAX = 50_000
CLIENTS_PER_ADDRESS_MAX = CLIENTS_MAX // 2  # half is left to clients of other addresses
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
WORK_NS = 20_000  # one unit of work, the cost to read and check a small message
WORK_BYTES = 16 * 1024  # bytes of a record that cost one unit of work to read and check
FILTER_CHARACTERS_MAX = 4_096
FILTER_TAGS_MAX = 2_048
FILTER_DEPTH_MAX = 50
FILTER_TERMS_MAX = 128
FILTER_MARKS_MAX = 1_024  # opening parentheses and commas, each of which takes the parser 8 us
FILTER_PASSES_MAX = 128  # over one property by all CONTAINS together, 8 ms for 16 KiB
FILTER_NUMBER_CHARACTERS_MAX = 128
FILTER_NUMBERS_KEPT_MAX = 4_096
FILTERS_KEPT_MAX = 512
FILTERS_PER_GROUP_MAX = 8  # on a topic; a message that a receive does not match is checked by all of them
FILTERS_WORK_MAX = 900  # of these filters for one message with properties of 16 KiB, in WORK_NS, 18 ms
FILTERS_BYTES_MAX = 64 * 1024 * 1024  # of the filters of all groups
FILTER_IDLE_MS = 5 * 60_000  # covers a rolling update and the return of a killed client
FILTER_STEP_MS = 60_000  # the maximum time between two receives that counts as idle time
FILTER_LOOK_MS = 10_000
FILTER_SETTINGS_MS = 6 * 60_000  # official clients repeat their settings every 5 minutes, or later
FILTER_CLIENT_MS = 120_000  # a client without a heartbeat for this time no longer holds its filter
FILTER_CLIENTS_MAX = 10_000  # clients whose last filter is stored

CHECK_IMMUNITY_MS = 6_000
CHECK_INTERVAL_MS = 10_000
CHECK_INTERVAL_MS_MAX = 300_000
CHECK_COUNT_DEFAULT = 15
CHECK_COUNT_MAX = 10_000
CHECK_IMMUNITY_MS_MAX = 24 * 3_600_000
CHECKS_WOKEN_MAX = 32  # halves that a new producer wakes; each check-back wakes one more
HALVES_LOOKED_AT_ONCE = 250
HALVES_KEPT_LOOKED_AT_ONCE = 20_000  # halves before a cut, which are searched in keep files
CHECKS_READ_PER_TICK_BYTES_MAX = 8 * 1024 * 1024

CLOCK_OFFSET_MS_MAX = 10 * DELAY_MS_MAX
DEDUPE_MS = 600_000
TIMER_HISTORY_MS = 7 * 86_400_000
DELIVERIES_PER_TICK_MAX = 2_000
SCHEDULER_PER_TICK_MAX = 500  # ended leases and halves to check, 10 to 20 us each
TIMER_RUN_MIN = 32  # from this number on, timers due together are delivered as columns

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
OPEN_RECORD_BYTES_MAX = 1024 * 1024  # acknowledgements of a turn beyond this need several records
UNFLUSHED_BYTES_MAX = 4 * 1024 * 1024  # beyond this limit, the broker's own appends wait
REQUEST_BYTES_MAX = 32 * 1024 * 1024
CALLERS_UNFLUSHED_BYTES_MAX = 64 * 1024 * 1024  # beyond this limit, appends of callers wait
CALLERS_UNFLUSHED_RECORD_BYTES = 20 * 1024  # minimum for a record; all become visible in one turn
CALLERS_WAITING_BYTES_MAX = 64 * 1024 * 1024  # beyond this limit, appends of callers are refused
CALLS_PER_TURN_MAX = 256  # or one call of several messages; other calls wait for the next turn
CALLS_PER_TURN_BYTES_MAX = 8 * 1024 * 1024  # of the requests in one turn, or one message
CALLER_WAITING_BYTES = 1024  # count for a waiting call in addition to its message
TIMERS_PER_TOPIC_MAX = 200_000_000
CLOCK_BACK_MS_MIN = 50
CLOCK_JUMP_MS_MIN = 1_000
LATE_MS_MIN = 50

LOOK_BYTES_MAX = 4 * 1024 * 1024  # of bodies in an answer to a query, which has at least one message
HEADERS_BYTES_MAX = 16 * 1024
STRANGER_MS_MAX = 10_000
STRANGERS_PER_ADDRESS_MAX = 256

CONNECTION_STREAMS_MAX = 2 * POLLS_PER_CLIENT_MAX  # at once, for long polls and all other calls
CLIENTS_PER_CONNECTION_MAX = CONNECTION_STREAMS_MAX  # a connected client has at least one open stream
STREAM_WINDOW_BYTES = 1024 * 1024  # of an unread request
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
CONNECTION_HEADERS_BYTES_MAX = 2 * 1024 * 1024  # of the open calls; further calls are refused
HEADERS_COUNT_MAX = 128  # fields of a header block
HEADER_BLOCK_BYTES_MAX = (
    2 * HEADERS_BYTES_MAX
)  # blocks up to this size are refused; larger ones end the connection
FRAME_MS_MAX = 20_000  # for a whole frame, a header block of several frames, or a greeting
IDLE_FRAMES_MAX = 2_000  # frames without progress at once
IDLE_FRAMES_PER_SECOND = 100
IDLE_DATA_BYTES_MAX = 16  # a part of a body with no more bytes makes no progress
PING_INTERVAL_MS_MIN = 10_000
WORK_PER_TURN_MAX = 32  # frames, or other work of some 10 us, of a connection in a turn of the loop
REQUEST_MS_MAX = 30_000  # for a request, plus the time for its bytes at the minimum speed
REQUEST_BYTES_PER_SECOND_MIN = 8 * 1024
REQUESTS_BYTES_MAX = 8 * REQUEST_BYTES_MAX  # of incomplete requests, and of requests that wait in a stream
REQUESTS_PER_CONNECTION_BYTES_MAX = 2 * REQUEST_BYTES_MAX
REQUEST_UNPACKED_BYTES_MAX = 2 * BODY_BYTES_MAX  # of a compressed message
UNPACKED_RATIO_MAX = 32  # expected compression ratio of a message
UNPACKED_BYTES_FREE = 512 * 1024  # bytes above the expected ratio that are allowed
UNPACKED_PER_TURN_BYTES = 512 * 1024  # of a connection in a turn of the loop, or one message
UNPACKED_BYTES_PER_FRAME = 1024  # above the expected ratio, which count as a frame without progress
QUESTION_BYTES_MAX = 64 * 1024  # of a request for a stream, which is kept until the stream ends
CONNECTION_UNREAD_BYTES_MAX = 64 * 1024 * 1024  # of unread answers of a connection
UNREAD_BYTES_MAX = ANSWERS_BYTES_MAX + COMMANDS_WAITING_ALL_BYTES_MAX  # of all; the largest is closed
UNREAD_MS_MAX = 60_000  # for which a client may read no bytes of its answers
WATCHES_MAX = 16_384  # health watches
HANDSHAKES_MAX = 64  # TLS handshakes at once; a slow handshake gives up its slot
HANDSHAKE_SLOT_MS_MAX = 500
HANDSHAKE_MS_MAX = 10_000

HTTP_BODY_BYTES_MAX = 512 * 1024  # fits a schedule of 64 KiB with every character escaped
HTTP_MESSAGES_BYTES_MAX = 6 * 1024 * 1024  # BODY_BYTES_MAX in base64 with properties, at most 16 ms to parse
HTTP_BODIES_BYTES_MAX = 64 * 1024 * 1024  # of all requests under way together
HTTP_BODY_VALUES_MAX = 10_000  # values of a JSON body, including names and brackets
HTTP_FIELDS_MAX = 5_000  # fields that are checked in one call; 1,000 errors take 1 ms to report
HTTP_TIMERS_VALUES_MAX = 100_000
HTTP_BODY_MS_MAX = 30_000
HTTP_HEAD_MS_MAX = 10_000
HTTP_CONNECTIONS_MAX = 2_048
HTTP_CONNECTIONS_PER_ADDRESS_MAX = 1_536
HTTP_POLLS_MAX = 1_536  # open long polls; other connections are left to other calls
HTTP_POLLS_PER_ADDRESS_MAX = 1_152
HTTP_FORWARDED_MAX = 256  # requests of a follower to the leader, each with a thread
TASK_SLICE = 50
FILTER_PROPERTIES_MAX = 20  # properties in a filter of timers
DEAD_LETTERS_LOOKED_AT_ONCE = 32
DEAD_LETTERS_LOOKED_AT_MAX = 50_000
TIMERS_LOOKED_AT_FIRST = 250
TIMERS_LOOKED_AT_MIN = 64
TIMERS_LOOK_WORK_MAX = 250  # records of timers that are read at once, in WORK_NS
TIMERS_LOOKED_AT_MAX = 64_000
TASKS_RUNNING_MAX = 4
TASKS_KEPT_MAX = 100
TIMER_BATCH_MAX = 1_000
TIMER_WINDOWS_MAX = 10_000
REASON_CHARACTERS_MAX = 1_000
DEAD_REASON_CHARACTERS_MAX = 200  # of a consumer's reason, which is a property of the dead letter

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
