"""The table of sub-commands, by room and file; `services.cli.main` has the rules for one."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A sub-command: its module below `services.cli`, its line in the list of commands, its extra."""

    module: str
    summary: str
    extra: str = ""


COMMANDS = {
    "serve": Entry("processes.serve", "Run a broker."),
    "dev": Entry("processes.dev", "Run a broker to try things with, with samples in it."),
    "config": Entry("settings.config", "Show the settings in force and where each is from; an example."),
    "demo": Entry("processes.demo", "Run a whole shop against a broker, then audit it.", "shop"),
    "audit": Entry("audit.audit", "Prove that messages, orders and carts agree.", "audit"),
    "shop": Entry("processes.shop", "Run one service of the shop: orders, carts or pushes.", "shop"),
    "topic": Entry("groups.topic", "List, create, show, alter, purge and delete topics."),
    "console": Entry("processes.console", "Show a broker in a browser."),
    "client": Entry("groups.client", "Who is connected; what a client's threads do."),
    "group": Entry("groups.group", "Consumer groups: their lag and clients; pause, set, reset them."),
    "dlq": Entry("groups.dlq", "Dead letters: look at them, send them back, purge them."),
    "schedule": Entry("timers.schedule", "Recurring messages: list, set, pause, end them."),
    "send": Entry("messages.send", "Send one message, now or later."),
    "work": Entry("processes.work", "Run an application's functions for messages.", "client"),
    "msg": Entry("messages.msg", "Find messages by key or id."),
    "explain": Entry("messages.explain", "Tell the life of one message or order, from the log."),
    "tail": Entry("messages.tail", "Show messages as they arrive, without consuming them."),
    "txn": Entry("transactions.txn", "Look at transactions; ask producers, end them by hand."),
    "outbox": Entry("transactions.outbox", "Look at an application's outbox; bring parked messages back."),
    "timer": Entry("timers.timer", "Look at delayed messages; cancel, move, fire them."),
    "auth": Entry("access.auth", "Users, their rights and tokens; allow, deny."),
    "status": Entry("diagnosis.status", "Show on one screen how a broker does."),
    "top": Entry("diagnosis.top", "Show that again and again, in place."),
    "check": Entry("diagnosis.check", "Judge one value of a broker, for probes."),
    "debug": Entry("diagnosis.debug", "Gather diagnostics for support."),
    "refused": Entry("access.refused", "Show who was sent away, and why."),
    "journal": Entry("access.journal", "List the acts of operators: who, what, why."),
    "doctor": Entry("diagnosis.doctor", "Say why a client cannot work with a broker."),
    "sample": Entry("sample", "Print a program of an official client."),
    "cluster": Entry("stores.cluster", "Keep one store on several machines."),
    "store": Entry("stores.store", "Look at a store, prove it, copy it, repair it."),
    "version": Entry("diagnosis.version", "Show the versions in use."),
}
