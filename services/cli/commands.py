"""The table of sub-commands; `services.cli.main` has the rules for one."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a sub-command lives, what the list of commands says about it, and the extra that it needs."""

    module: str
    summary: str
    extra: str = ""


COMMANDS = {
    "serve": Entry("services.cli.serve", "Run a broker."),
    "dev": Entry("services.cli.dev", "Run a broker to try things with, with samples in it."),
    "config": Entry("services.cli.config", "Show the settings in force and where each is from; an example."),
    "demo": Entry("services.cli.demo", "Run a whole shop against a broker, then audit it.", "shop"),
    "audit": Entry("services.cli.audit", "Prove that messages, orders and carts agree.", "audit"),
    "shop": Entry("services.cli.shop", "Run one service of the shop: orders, carts or pushes.", "shop"),
    "topic": Entry("services.cli.topic", "List, create, show, alter, purge and delete topics."),
    "console": Entry("services.cli.console", "Show a broker in a browser."),
    "client": Entry("services.cli.client", "Who is connected; what a client's threads do."),
    "group": Entry("services.cli.group", "Consumer groups: their lag and clients; pause, set, reset them."),
    "dlq": Entry("services.cli.dlq", "Dead letters: look at them, send them back, purge them."),
    "schedule": Entry("services.cli.schedule", "Recurring messages: list, set, pause, end them."),
    "send": Entry("services.cli.send", "Send one message, now or later."),
    "work": Entry("services.cli.work", "Run an application's functions for messages.", "client"),
    "msg": Entry("services.cli.msg", "Find messages by key or id."),
    "explain": Entry("services.cli.explain", "Tell the life of one message or order, from the log."),
    "tail": Entry("services.cli.tail", "Show messages as they arrive, without consuming them."),
    "txn": Entry("services.cli.txn", "Look at transactions; ask producers, end them by hand."),
    "outbox": Entry("services.cli.outbox", "Look at an application's outbox; bring parked messages back."),
    "timer": Entry("services.cli.timer", "Look at delayed messages; cancel, move, fire them."),
    "auth": Entry("services.cli.auth", "Users, their rights and tokens; allow, deny."),
    "status": Entry("services.cli.status", "Show on one screen how a broker does."),
    "top": Entry("services.cli.top", "Show that again and again, in place."),
    "check": Entry("services.cli.check", "Judge one value of a broker, for probes."),
    "debug": Entry("services.cli.debug", "Gather diagnostics for support."),
    "refused": Entry("services.cli.refused", "Show who was sent away, and why."),
    "journal": Entry("services.cli.journal", "List the acts of operators: who, what, why."),
    "doctor": Entry("services.cli.doctor", "Say why a client cannot work with a broker."),
    "sample": Entry("services.cli.sample", "Print a program of an official client."),
    "cluster": Entry("services.cli.cluster", "Keep one store on several machines."),
    "store": Entry("services.cli.store", "Look at a store, prove it, copy it, repair it."),
    "version": Entry("services.cli.version", "Show the versions in use."),
}
