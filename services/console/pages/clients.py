"""`/clients`: the clients of the gRPC port and requests to them. `/refused`: refused clients and the reasons.

/clients         the clients, optionally filtered by id, kind, group or language
/clients/one     a client, its measurements and the requests to it
/clients/stack   the stack traces of its threads
/refused         the refusals since the broker's start by reason, with advice
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from services.console.forms import is_count
from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from services.status.refusals import advice
from tidewheel.errors import ClientMistake

SHOWN_MAX: Final = 500
REFUSED_MAX: Final = 200
OK: Final = "OK"


def read(broker: Api, asked: Asked) -> Model:
    """Return the clients whose id, kind, group or language contains `name`, most recently seen first."""
    name = asked.get("name")
    clients = broker.get("clients")["clients"]
    texts = ("client_id", "kind", "group", "language")
    found = [one for one in clients if any(name.lower() in one[text].lower() for text in texts)]
    found.sort(key=lambda one: -int(one["seen_ms"]))
    return {
        "name": name,
        "count": len(clients),
        "clients": found[:SHOWN_MAX],
        "more": len(found[SHOWN_MAX:]),
    }


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a client and its measurements."""
    found: Model = broker.get("clients", "show", client=asked.required("client", "The client"))
    return found


def read_stack(broker: Api, asked: Asked) -> Model:
    """Return the stack traces of a client's threads."""
    client = asked.required("client", "The client")
    found: Model = broker.post("clients", "stack", body={"client": client})
    return found


def verify(broker: Api, asked: Asked) -> Done:
    """Let a push consumer consume a message again. The progress of its group does not change."""
    client, place = asked.required("client", "The client"), {}
    for field, name in (("queue_id", "queue"), ("queue_offset", "offset")):
        text = asked.required(name, f"The {name}")
        if not is_count(text):
            raise ClientMistake(f"The {name} is {text[:20]!r}: it is a number from 0 on.")
        place[field] = int(text)
    body = {"client": client, "topic": asked.required("topic", "The topic")} | place
    code = broker.post("clients", "verify", body=body)["code"]
    said = "consumed the message" if code == OK else f"did not consume the message: {code}"
    return Done(f"{client} {said}. Its group's progress is as it was.", page_of(client))


def reconnect(broker: Api, asked: Asked) -> Done:
    """Tell a client to reconnect."""
    client = asked.required("client", "The client")
    broker.post("clients", "reconnect", body={"client": client})
    return Done(f"{client} was told to connect again.", page_of(client))


def read_refused(broker: Api, asked: Asked) -> Model:
    """Return the refusals by reason, most frequent first, and the latest refusals."""
    reason = asked.get("reason")
    found = broker.get("refused", reason=reason, limit=REFUSED_MAX)
    counted = sorted(found["counts"].items(), key=lambda pair: -pair[1])
    return {
        "reason": reason,
        "counts": [{"reason": name, "count": count, "advice": advice(name)} for name, count in counted],
        "refused": found["refused"],
    }


def page_of(client: str) -> str:
    """Return the path of a client's page."""
    return f"/clients/one?client={quote(client, safe='')}"


PAGE: Final = Page("/clients", "Clients", "clients.html", read, entry="Clients")
ONE: Final = Page(
    "/clients/one", "Client", "client.html", read_one, acts={"verify": verify, "reconnect": reconnect}
)
STACK: Final = Page("/clients/stack", "Threads of a client", "client_stack.html", read_stack, every_ms=0)
REFUSED: Final = Page("/refused", "Refused", "refused.html", read_refused, entry="Refused")
