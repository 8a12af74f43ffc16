"""Topics and groups of a mapping that do not occur in the log.

A wrong name of a topic or group makes every order a finding, or none if no case checks it. These names are
therefore reported before any finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from commitlog.records.kinds import kind_of_topic
from spark_jobs.inputs.mapping import SHOP, Groups, Mapping, Topics
from spark_jobs.staging.staged import Staged

SHOWN_MAX: Final = 20
"""Maximum number of existing topics that a sentence lists."""


def absent_names(staged: Staged, mapping: Mapping) -> list[str]:
    """Return a sentence for each topic and group of the mapping that does not occur in a staged log."""
    topics = set(staged.table("counts")["topic"].to_pylist())
    acknowledged = set(staged.table("acks")["topic"].to_pylist())
    acting = {topic for number, topic in enumerate(mapping.topics.all) if number in acknowledged}
    return [*absent_topics(topics, mapping), *absent_groups(topics, acting, mapping)]


def absent_topics(topics: Iterable[str | None], mapping: Mapping) -> list[str]:
    """Return a sentence for each mapped topic that is not in the log (`topics`).

    Topics that have the shop's own name may be missing, except for that of placed orders.
    """
    there = {topic for topic in topics if topic}
    shown = sorted(topic for topic in there if kind_of_topic(topic) == "normal")
    listed = ", ".join(shown[:SHOWN_MAX]) + (", and more" if len(shown) > SHOWN_MAX else "")
    return [
        f"The log has no record of topic {name}, which [topics] {ours} names. It has {listed or 'none'}."
        for ours, name in _named(mapping.topics)
        if name not in there and (ours == "order_created" or name != getattr(SHOP.topics, ours))
    ]


def absent_groups(topics: Iterable[str | None], acting: Iterable[str], mapping: Mapping) -> list[str]:
    """Return a sentence for each mapped group that has acknowledged nothing of a topic in the log.

    `acting` has the topics with acknowledgements. Groups with the shop's own name are not reported.
    """
    there, known = set(topics), set(acting)
    return [
        f"Group {group}, which [groups] {ours} names, has acknowledged nothing of topic "
        f"{getattr(mapping.topics, ours)} in this log. See: tidewheel group ls"
        for ours, group in _named(mapping.groups)
        if getattr(mapping.topics, ours) in there - known and group != getattr(SHOP.groups, ours)
    ]


def _named(names: Topics | Groups) -> list[tuple[str, str]]:
    named = [(one.name, getattr(names, one.name)) for one in fields(names)]
    return [(ours, name) for ours, name in named if name]
