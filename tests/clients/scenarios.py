"""What a broker owes every official client: the names of all scenarios.

`SCENARIOS` has them by name; every one is played by every client of `official`, on topics and groups of its
own. `CANNOT` has the few that a client's library cannot play, with the reason. Nothing here waits for longer
than it must: what is to come is awaited, and that nothing comes is asked with a short long poll.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.clients import plays_groups as groups
from tests.clients import plays_lite as lite
from tests.clients import plays_questions as questions
from tests.clients import plays_receiving as receiving
from tests.clients import plays_sending as sending
from tests.clients.play import Play

SCENARIOS: Final[dict[str, Callable[[Play], None]]] = {
    "send and receive": sending.a_message_arrives_as_it_was_sent,
    "send four mebibytes": sending.a_body_of_four_mebibytes_is_taken_and_one_byte_more_refused,
    "receive four mebibytes": sending.a_body_of_four_mebibytes_arrives,
    "type refused": sending.a_message_of_another_type_is_refused,
    "property refused": sending.a_reserved_property_is_refused,
    "delay": sending.a_delayed_message_is_never_early,
    "recall": sending.a_recalled_message_never_arrives,
    "recall too late": sending.a_recall_that_is_too_late_is_told_so,
    "commit and rollback": sending.a_commit_shows_the_message_and_a_rollback_never_does,
    "check-back": sending.a_half_that_is_left_alone_is_asked_about_and_ends_as_answered,
    "tag filter": sending.a_tag_filter_lets_only_its_tags_through,
    "SQL filter": sending.an_sql_filter_lets_only_what_is_true_through,
    "SQL refused": sending.a_wrong_expression_is_refused_with_its_place,
    "priority": sending.what_has_a_higher_priority_comes_first,
    "priority refused": sending.a_priority_is_refused_where_none_is_kept,
    "two groups": groups.two_groups_each_get_everything,
    "shared group": groups.consumers_of_a_group_share_its_messages,
    "start at latest": groups.a_group_may_begin_with_what_comes_next,
    "pause and resume": groups.a_paused_group_gets_nothing_until_it_is_resumed,
    "reset": groups.a_reset_group_gets_everything_again,
    "redrive": groups.a_dead_letter_that_is_redriven_comes_back_to_its_group_alone,
    "batch of 32": groups.one_receive_brings_at_most_thirty_two,
    "empty receive": receiving.an_empty_topic_is_answered_when_the_wait_is_over,
    "long poll wakes": receiving.a_long_poll_wakes_when_a_message_comes,
    "ack": receiving.what_is_acknowledged_never_comes_again,
    "lease runs out": receiving.what_is_not_acknowledged_comes_again_and_its_old_handle_is_void,
    "ack twice refused": receiving.an_acknowledged_handle_is_void,
    "foreign ack refused": receiving.another_group_cannot_acknowledge,
    "change invisible shorter": receiving.a_shorter_lease_brings_the_message_back_sooner,
    "change invisible longer": receiving.a_longer_lease_keeps_the_message_and_its_first_handle_is_void,
    "nack": receiving.a_nack_brings_the_message_at_once_as_the_next_attempt,
    "dead letter": receiving.after_its_last_attempt_a_message_is_a_dead_letter,
    "push": receiving.a_push_consumer_gets_every_message_once,
    "push retry": receiving.a_push_consumer_gets_a_failed_message_again,
    "push dead letter": receiving.a_poisonous_message_is_a_dead_letter_after_the_last_attempt_of_its_group,
    "FIFO order": receiving.messages_of_a_group_come_in_order_and_never_two_at_once,
    "FIFO retry": receiving.a_failed_message_holds_back_its_group_and_no_other,
    "push FIFO": receiving.a_push_consumer_keeps_the_order_of_a_group,
    "push FIFO dead letter": receiving.a_poisonous_message_holds_its_group_up_only_until_it_is_a_dead_letter,
    "lite": lite.a_consumer_gets_the_lite_topics_it_subscribed_to_and_no_others,
    "lite order": lite.messages_of_a_lite_topic_come_in_order_and_never_two_at_once,
    "lite nack": lite.a_nack_brings_the_message_again_before_the_later_ones,
    "lite lease runs out": lite.what_is_not_acknowledged_comes_again_and_holds_back_what_is_behind_it,
    "lite long poll wakes": lite.a_long_poll_wakes_for_its_lite_topics_only,
    "lite unsubscribe": lite.what_one_no_longer_wants_is_there_for_the_next,
    "lite push": lite.a_push_consumer_gets_the_lite_topics_it_subscribed_to_in_order,
    "lite push unsubscribe": lite.a_push_consumer_gets_nothing_of_what_it_unsubscribed_from,
    "lite push retry": lite.a_push_consumer_gets_a_failed_message_again_before_the_later_ones,
    "lite takeover": lite.in_an_exclusive_group_who_subscribes_last_gets_a_lite_topic,
    "lite refused": lite.a_message_must_belong_to_a_lite_topic,
    "lite name refused": lite.a_lite_topic_must_have_a_plain_name,
    "lite for others refused": lite.an_ordinary_consumer_is_told_how_to_receive_lite_topics,
    "stack trace": questions.a_client_tells_what_its_threads_do,
    "verify message": questions.a_push_consumer_tries_a_message_once_more,
}
UNTOLD: Final = "SimpleConsumer.Ack of 5.1.4 says nothing of what a status other than OK refuses"
LITE_SIMPLE: Final = (
    "lite",
    "lite order",
    "lite nack",
    "lite lease runs out",
    "lite long poll wakes",
    "lite unsubscribe",
)
LITE_PUSH: Final = (
    "lite push",
    "lite push unsubscribe",
    "lite push retry",
    "lite takeover",
    "lite name refused",
)
QUESTIONS: Final = ("stack trace", "verify message")
CANNOT: Final[dict[str, dict[str, str]]] = {
    "python": dict.fromkeys(QUESTIONS, "the client knows no question but how a transaction ended"),
    "node": {
        "receive four mebibytes": "grpc-js takes no reply above 4 MiB; the client cannot tell it to",
        "verify message": "the client answers NOT_IMPLEMENTED",
        **dict.fromkeys(LITE_SIMPLE, "the client 1.0.8 has no simple consumer of lite topics"),
    },
    "java": dict.fromkeys(LITE_SIMPLE, "rocketmq-client-java 5.2.0 has no simple consumer of lite topics"),
    "go": {
        **dict.fromkeys(LITE_SIMPLE, "the client 5.1.4 has no simple consumer of lite topics"),
        "verify message": "the client answers NOT_IMPLEMENTED",
        "lease runs out": UNTOLD,
        "ack twice refused": UNTOLD,
        "foreign ack refused": UNTOLD,
        "change invisible shorter": UNTOLD,
        "change invisible longer": UNTOLD,
    },
    "rust": {
        **dict.fromkeys((*LITE_SIMPLE, *LITE_PUSH, "lite refused"), "rocketmq 5.0.0 knows no lite topics"),
        **dict.fromkeys(QUESTIONS, "rocketmq 5.0.0 of crates.io has no push consumer"),
        "receive four mebibytes": "tonic takes no reply above 4 MiB; the client does not tell it to",
        **dict.fromkeys(("recall", "recall too late"), "rocketmq 5.0.0 of crates.io cannot recall"),
        **dict.fromkeys(("priority", "priority refused"), "rocketmq 5.0.0 of crates.io knows no priorities"),
        **dict.fromkeys(
            (
                "change invisible shorter",
                "change invisible longer",
                "nack",
                "dead letter",
                "redrive",
                "FIFO retry",
            ),
            "rocketmq 5.0.0 of crates.io cannot change how long a message is invisible",
        ),
        **dict.fromkeys(
            ("push", "push retry", "push dead letter", "push FIFO", "push FIFO dead letter"),
            "rocketmq 5.0.0 of crates.io has no push consumer",
        ),
    },
}
"""By client and scenario, why its library cannot play it."""
