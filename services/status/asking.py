"""Requests for the evaluation of a broker, its nodes, and an audit.

A missing answer is an `Unread` with the reason: a missing right or an unreachable node hides no other answer.
Errors propagate only if no Tidewheel broker answers: `BrokerUnreachable`, `AnswerLate`. All requests are sent
to the leader if its address is given, and otherwise to the first address. Other addresses are queried only
for their view of the cluster. Addresses reported by a broker are never used, so that a token is sent only to
addresses given by the caller.

Cost: eight sequential requests. Groups and metrics require full scans in the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from services.status.judgement import LEADING, READY, Answers, Unread
from services.times.display import now_ms
from tidewheel.errors import AnswerLate, BrokerUnreachable, LibraryMissing, NotFound, TidewheelError

NOT_READY: Final = 503
NOT_ASKED: Final = "not asked, since the answer before came too late"
JSON_ANSWERS: Final = {
    "timers": ("timers", "summary"),
    "groups": ("groups",),
    "halves": ("transactions", "summary"),
    "dead_letters": ("dead-letters",),
}


class Api(Protocol):
    """API calls to one broker."""

    @property
    def address(self) -> str:
        """The address that is called."""

    def get(self, *path: str) -> Any:
        """Return a JSON answer. Raises `TidewheelError`."""

    def probe(self, path: str) -> tuple[int, str]:
        """Return status and text, regardless of the status."""


def answers_of(
    api: Api, others: Mapping[str, Api], audits: Path | None, names: frozenset[str] | None = None
) -> Answers:
    """Return the answers for `services.status.judgement`, restricted to `names` if given.

    `others` are further nodes by address. Raises `BrokerUnreachable`, `AnswerLate`.
    """
    questions = ClientQueries()
    found: dict[str, Any] = {"ready": questions.asked(partial(ready, api))}
    questions.is_answered = True
    cluster, nodes = questions.asked(partial(cluster_of, api)), {}
    if isinstance(cluster, dict):
        nodes = {address: _view_of(node) for address, node in others.items()}
        if cluster["role"] != LEADING and (leader := leading(nodes)):
            nodes = {api.address: cluster, **nodes}
            api, cluster = others[leader], nodes.pop(leader)
            found["ready"] = questions.asked(partial(ready, api))
    found |= {"address": api.address, "cluster": cluster, "nodes": nodes}
    found["now_ms"] = _broker_ms(questions.asked(partial(api.get, "clock")))
    asks: dict[str, Callable[[], Any]] = {
        name: partial(api.get, *path) for name, path in JSON_ANSWERS.items()
    }
    asks["figures"] = lambda: figures(metrics(api))
    for name, ask in asks.items():
        is_wanted = names is None or name in names
        found[name] = questions.asked(ask) if is_wanted else Unread("not asked")
    found["audit"] = newest_audit(audits) if audits else None
    return found


class ClientQueries:
    """Requests to one broker. After a late answer, the remaining requests are skipped."""

    def __init__(self) -> None:
        self.is_answered = False
        """Whether the broker has answered; a later timeout is then a missing answer, not an error."""
        self._is_late = False

    def asked(self, ask: Callable[[], Any]) -> Any:
        """Return an answer or `Unread`. Errors that apply to all answers are raised."""
        if self._is_late:
            return Unread(NOT_ASKED)
        try:
            return ask()
        except AnswerLate as error:
            if not self.is_answered:
                raise
            self._is_late = True
            return Unread(f"{error.code} {error}")
        except BrokerUnreachable:
            raise
        except TidewheelError as error:
            return Unread(f"{error.code} {error}")


def leading(nodes: Mapping[str, Any]) -> str:
    """Return the address of the leader, or an empty string if it is unknown."""
    leads = (one for one, said in nodes.items() if isinstance(said, dict) and said["role"] == LEADING)
    return next(leads, "")


def ready(api: Api) -> tuple[int, str]:
    """Return status and text of `/readyz`. Raises `BrokerUnreachable` if the server is not Tidewheel."""
    status, text = api.probe("/readyz")
    if status == NOT_READY or (status == READY and text.startswith("ready\n")):
        return status, text
    raise BrokerUnreachable(
        f"What answers at {api.address} is no Tidewheel HTTP interface: its /readyz ends with {status}. "
        "Name the broker's with --http."
    )


def metrics(api: Api) -> str:
    """Return the text of `/metrics`. Raises `NotFound` for any other status."""
    status, text = api.probe("/metrics")
    if status != READY:
        raise NotFound(f"/metrics ends with {status}.")
    return text


def figures(text: str) -> dict[str, float]:
    """Return the sum of each metric over its labels."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def newest_audit(out: Path) -> dict[str, Any] | Unread | None:
    """Return the summary of the newest run in a folder, or None if there is none."""
    if not (out / "runs").is_dir():
        return None
    try:
        from spark_jobs.runs import newest_run

        run = newest_run(out)
        if run is None:
            is_there = any((out / "runs").glob("*/summary.json"))
            return Unread(f"no run in {out} can be read") if is_there else None
        return {
            "out": str(out),
            "run": run.run_id,
            "written_ms": run.written_ms,
            "is_balanced": run.is_balanced,
            "orders": run.orders_count,
            "findings": run.findings_count,
            "cases": run.finding_cases,
        }
    except (ModuleNotFoundError, LibraryMissing):
        return Unread(f"{out} has audits, and to read them needs: pip install 'tidewheel[audit]'")
    except (OSError, ValueError, KeyError, TypeError, TidewheelError) as error:
        return Unread(f"the newest audit of {out} cannot be read ({error})")


def cluster_of(api: Api) -> Any:
    """Return a node's view of its cluster, or None for a single broker."""
    try:
        return api.get("cluster")
    except NotFound:
        return None


def _view_of(node: Api) -> Any:
    """Return a node's view of its cluster."""
    try:
        return node.get("cluster")
    except TidewheelError as error:
        return Unread(str(error))


def _broker_ms(clock: Any) -> int:
    """Return the broker's real time in ms, or this machine's time if it could not be read."""
    return now_ms() if isinstance(clock, Unread) else int(clock["now_ms"]) - int(clock["offset_ms"])
