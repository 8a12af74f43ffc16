"""Authentication and authorization of all RPCs of a table.

    headers --> signature (services.auth.signature) --> rights (NEEDS, services.auth.rights) --> handler
                invalid: UNAUTHORIZED                     missing: FORBIDDEN

Rules:
- The client id of a caller becomes `<user>/<client id>`. Clients choose their ids, so otherwise a user could
  end, renew or observe sessions and leases of another user by using the same id.
- A request is refused as a whole if one of its parts is refused.
- A stream is checked when it opens and for each reply, because a receive may have waited while its right was
  revoked. Check-backs to producers are checked when they are sent (`services.rpc.clients.producers`).
- Metrics of clients may have an old signature date: Python's client signs its exports only once, when it
  begins to export. An attacker who records this signature can only send false metrics for the user's clients.
- A call that a cluster node forwards is checked against the time when it arrived at that node
  (`services.cluster.forwarding.origin_signatures`).
- Each refusal is recorded with its reason (`services.auth.refusals`), but without the signature.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from services.auth.errors import Forbidden, Unauthorized
from services.auth.refusals import Refusals
from services.auth.rights import Kind, Need, Verb, lacking
from services.auth.signature import Reason, Refused, check, parse
from services.live.access import LiveAccess
from services.live.clients.client_metrics import Key
from services.rpc.metrics.metrics_export import OPENCENSUS, OTLP
from services.rpc.needs import NEEDS
from services.rpc.serving.service import Prompt, Rpc, Streaming, Unary
from services.rpc.wire.caller import Asked, Caller
from services.rpc.wire.replies import DecidedReply
from tidewheel.errors import TidewheelError

FORBIDDEN: Final = "no right"
SIGNED_ONCE: Final = frozenset((OTLP, OPENCENSUS))
SENTENCES: Final = {
    Reason.UNSIGNED: "Give the client the access key and secret of a user: tidewheel auth user add NAME",
    Reason.MALFORMED: "Its authorization or x-mq-date-time header is none that an official client writes.",
    Reason.UNKNOWN_KEY: "There is no such user. See which there are: tidewheel auth user ls",
    Reason.WRONG_SIGNATURE: "It was not made with that user's secret. Another: tidewheel auth user add -h",
    Reason.SKEWED: "Its clock is ahead of the broker's, in every time zone. Set it.",
    Reason.REPLAYED: "Its date has passed, in every time zone: a call of old, or a clock that is behind.",
}


class Guard:
    """Authorizes callers. `clock` returns real time in milliseconds."""

    def __init__(self, access: LiveAccess, refusals: Refusals, clock: Callable[[], int]) -> None:
        self._access, self._refusals, self._clock = access, refusals, clock

    def admit(self, rpc: str, request: Any, caller: Caller) -> Caller:
        """Return the caller with its user. Raises `Unauthorized` or `Forbidden`."""
        user = self._user_of(rpc, caller)
        self.check(rpc, request, user, caller.host)
        return replace(caller, user=user, client_id=f"{user}/{caller.client_id}")

    def check(self, rpc: str, request: Any, user: str, host: str) -> None:
        """Raise `Forbidden` unless the user currently has the rights for a request."""
        for need in NEEDS[rpc](request):
            if not self._access.allows(user, need):
                self._refusals.add(FORBIDDEN, host, f"{rpc}: {need}", user)
                raise Forbidden(lacking(user, [need]))

    def may_end(self, user: str, topic: str) -> bool:
        """Return whether a user may end the transactions of a topic, and thus receive check-backs for it."""
        return self._access.allows(user, Need(Verb.TRANSACT, Kind.TOPIC, topic))

    def may_name(self, user: str, key: Key) -> bool:
        """Return whether a user has any right on the topic and the group of a metric."""
        asked = [Need(None, Kind.TOPIC, key.topic)] + [Need(None, Kind.GROUP, key.group)] * bool(key.group)
        return all(self._access.allows(user, need) for need in asked)

    def _user_of(self, rpc: str, caller: Caller) -> str:
        try:
            signed = parse(caller.authorization, caller.date)
            came_ms = self._clock() if caller.came_ms is None else caller.came_ms
            check(
                signed,
                self._access.secret_of(signed.access_key),
                None if rpc in SIGNED_ONCE else came_ms,
            )
        except Refused as refused:
            self._refusals.add(refused.reason, caller.host, rpc, refused.access_key)
            raise Unauthorized(f"{refused.reason.capitalize()}. {SENTENCES[refused.reason]}") from None
        return signed.access_key


def guarded(rpcs: dict[str, Rpc], guard: Guard) -> dict[str, Rpc]:
    """Return a table whose handlers are called only for authorized callers."""
    assert rpcs.keys() <= NEEDS.keys(), "for every RPC it must be known what it needs"
    return {name: WATCHED[type(rpc)](name, rpc, guard) for name, rpc in rpcs.items()}


def watched(name: str, rpc: Unary, guard: Guard) -> Unary:
    """Return a unary RPC with authorization."""

    async def handler(request: Any, caller: Caller) -> Any:
        return await rpc.handler(request, guard.admit(name, request, caller))

    return replace(rpc, handler=handler)


def watched_prompt(name: str, rpc: Prompt, guard: Guard) -> Prompt:
    """Return a prompt RPC with authorization."""

    def admitted(asked: Asked) -> Caller | TidewheelError:
        try:
            return guard.admit(name, *asked)
        except TidewheelError as error:
            return error

    def decide(calls: Sequence[Asked]) -> list[DecidedReply | Exception]:
        known = [(request, admitted((request, caller))) for request, caller in calls]
        welcome = [(request, one) for request, one in known if isinstance(one, Caller)]
        decided = iter(rpc.decide(welcome))
        return [next(decided) if isinstance(one, Caller) else one for _, one in known]

    return replace(rpc, decide=decide)


def watched_stream(name: str, rpc: Streaming, guard: Guard) -> Streaming:
    """Return a streaming RPC with authorization."""

    async def handler(request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        known = guard.admit(name, request, caller)
        async with aclosing(rpc.handler(request, known)) as replies:
            async for reply in replies:
                guard.check(name, request, known.user, known.host)
                yield reply

    return replace(rpc, handler=handler)


WATCHED: Final[dict[type[Rpc], Callable[[str, Any, Guard], Rpc]]] = {
    Unary: watched,
    Prompt: watched_prompt,
    Streaming: watched_stream,
}
