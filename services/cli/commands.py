"""The table of subcommands. The rules for a subcommand are in `services.cli.main`."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A subcommand: its module below `services.cli`, its line in the list of commands, and its extra."""

    module: str
    summary: str
    extra: str = ""


COMMANDS = {
    "serve": Entry("processes.serve", "Run a broker."),
    "dev": Entry("processes.dev", "Run a broker for experiments, with sample topics."),
    "config": Entry("settings.config", "Show the current settings and the source of each; print an example."),
    "demo": Entry("processes.demo", "Run a complete shop with a broker, then audit it.", "shop"),
    "audit": Entry("audit.audit", "Prove that messages, orders and carts agree.", "audit"),
    "shop": Entry("processes.shop", "Run one service of the shop: orders, carts or pushes.", "shop"),
    "topic": Entry("groups.topic", "List, create, alter, move and delete topics; hold their timers."),
    "console": Entry("processes.console", "Show a broker in a browser."),
    "client": Entry("groups.client", "Show connected clients; show the threads of a client."),
    "group": Entry("groups.group", "Show consumer groups with lag and clients; pause, set, reset groups."),
    "dlq": Entry("groups.dlq", "Show, redrive and purge dead letters."),
    "schedule": Entry("timers.schedule", "List, set, pause and end recurring messages."),
    "send": Entry("messages.send", "Send one message, now or later."),
    "work": Entry("processes.work", "Run the message handlers of an application.", "client"),
    "msg": Entry("messages.msg", "Find messages by key or id."),
    "explain": Entry("messages.explain", "Show the history of one message or order, from the log."),
    "tail": Entry("messages.tail", "Show messages as they arrive, without consuming them."),
    "txn": Entry("transactions.txn", "Show transactions; send check-backs, end transactions manually."),
    "outbox": Entry("transactions.outbox", "Show the outbox of an application; replay parked messages."),
    "timer": Entry("timers.timer", "Show, cancel, move and fire delayed messages."),
    "auth": Entry("access.auth", "Manage users, their rights and tokens."),
    "status": Entry("diagnosis.status", "Show the state of a broker on one screen."),
    "top": Entry("diagnosis.top", "Show the state of a broker, refreshed continuously."),
    "check": Entry("diagnosis.check", "Check one value of a broker, for probes."),
    "debug": Entry("diagnosis.debug", "Collect diagnostics for support."),
    "refused": Entry("access.refused", "Show refused callers with the reasons."),
    "journal": Entry("access.journal", "List the acts of operators with callers and reasons."),
    "doctor": Entry("diagnosis.doctor", "Diagnose the connection of a client to a broker."),
    "sample": Entry("sample", "Print a sample program for an official client."),
    "cluster": Entry("stores.cluster", "Keep one store on several machines."),
    "store": Entry("stores.store", "Inspect, verify, copy and repair a store."),
    "version": Entry("diagnosis.version", "Show the versions in use."),
}
