"""Names of a mapping that the log does not have: nothing can be found of them, or everything is missing.

A wrong name of a topic or a group makes a finding of every order, or of none where no case asks for it. So
these names are said before any finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from commitlog.kinds import kind_of_topic
from spark_jobs.inputs.mapping import SHOP, Groups, Mapping, Topics
from spark_jobs.staging.staged import Staged

SHOWN_MAX: Final = 20
"""So many of the topics that there are are named."""


def absent_names(staged: Staged, mapping: Mapping) -> list[str]:
    """Return a sentence for each topic and group of the mapping of which a staged log has nothing."""
    topics = set(staged.table("counts")["topic"].to_pylist())
    acknowledged = set(staged.table("acks")["topic"].to_pylist())
    acting = {topic for number, topic in enumerate(mapping.topics.all) if number in acknowledged}
    return [*absent_topics(topics, mapping), *absent_groups(topics, acting, mapping)]


def absent_topics(topics: Iterable[str | None], mapping: Mapping) -> list[str]:
    """Return a sentence for each mapped topic that is not among those of the log; the shop's own names need
    not be there, apart from that of placed orders.
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
    """Return a sentence for each mapped group that has acknowledged nothing of a topic that the log has."""
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
