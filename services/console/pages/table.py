"""The table of pages in the order of the menu."""

from __future__ import annotations

from services.console.page import Page
from services.console.pages import (
    calendar,
    clients,
    cluster,
    dead_letters,
    groups,
    journal,
    message,
    overview,
    schedules,
    search,
    tasks,
    topic_change,
    topics,
    transactions,
)
from services.console.pages.audits import Audits
from services.console.sparklines import Samples


def pages_of(audits: Audits, samples: Samples) -> tuple[Page, ...]:
    """Return all pages."""
    return (
        overview.page(audits.folder, samples),
        message.PAGE,
        search.PAGE,
        topics.PAGE,
        topics.ONE,
        topics.MESSAGE,
        topics.SEND,
        topic_change.PAGE,
        calendar.PAGE,
        calendar.ONE,
        calendar.ALL,
        schedules.PAGE,
        schedules.ONE,
        schedules.SET,
        transactions.PAGE,
        transactions.ONE,
        groups.PAGE,
        groups.ONE,
        groups.RESET,
        dead_letters.PAGE,
        dead_letters.GROUP,
        dead_letters.ONE,
        dead_letters.REDRIVE,
        tasks.PAGE,
        tasks.ONE,
        clients.PAGE,
        clients.ONE,
        clients.STACK,
        clients.REFUSED,
        cluster.PAGE,
        *audits.pages(),
        journal.PAGE,
    )
