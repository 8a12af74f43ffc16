"""`/schedules`: recurring messages and operations to set, pause, resume and remove them.

    /schedules       a page of schedules with their next occurrences
    /schedules/one   a schedule with its message, its next occurrences and its operations
    /schedules/set   the occurrences of a cron expression, and the form that sets a schedule

Times are in the time zone of the schedule. Occurrences during a pause are skipped.

The form that sets a schedule contains the values that it showed (`seen`), or that there was none. The broker
refuses a change of what another operator has changed since. A preview says so if the times of the schedule
are others than the form showed first.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from services.console.bodies import shown
from services.console.forms import (
    TEXT,
    body_fields,
    body_of,
    is_count,
    lines_of,
    pairs_of,
    pairs_text,
    seen_in,
    unfit,
)
from services.console.page import Asked, Done, Model, Page
from services.http.api import Api
from services.times import moments
from services.times.display import now_ms
from services.times.zones import in_zone
from tidewheel.errors import ClientMistake, NotFound

LIMIT: Final = 100
COMING: Final = 10
MISSED: Final = ("once", "skip", "all")
SENT: Final = ("topic", "tag", "message_group", "missed")
TYPED: Final = ("tag", "message_group")
"""The fields that are sent with the blanks around them."""
WHEN: Final = ("cron", "time_zone", "start", "end")
SEEN: Final = (
    *("cron", "time_zone", "start_ms", "end_ms", "topic", "tag", "keys"),
    *("message_group", "properties", "missed", "missed_max"),
)
"""The values of a schedule that its form sends back as it showed them, beside the body."""
SEEN_WHEN: Final = SEEN[:4]
ABSENT: Final[Model] = {"exists": False}
USUAL_ZONE: Final = "UTC"
EMPTY: Final[Model] = {
    **dict.fromkeys(("name", *WHEN, *SENT, "body", "keys", "properties", "unfit"), ""),
    "encoding": TEXT,
    "is_long": False,
    "time_zone": USUAL_ZONE,
    "missed": MISSED[0],
    "missed_max": "",
    "was": "",
    "seen": json.dumps(ABSENT),
    "seen_when": "",
}


def read(broker: Api, asked: Asked) -> Model:
    """Return a page of schedules, sorted by name."""
    found = broker.get("schedules", after=asked.get("after"), limit=LIMIT)
    following = urlencode({"after": found["after"]}) if found["after"] else ""
    return {"schedules": found["schedules"], "next": following}


def read_one(broker: Api, asked: Asked) -> Model:
    """Return a schedule, its message and its next occurrences."""
    found = broker.get("schedules", asked.required("name", "The schedule"), count=COMING)
    return {"schedule": shown(found)}


def read_set(broker: Api, asked: Asked) -> Model:
    """Return the form fields, with the values of schedule `name` if it exists, and the occurrences of the
    cron expression.
    """
    fields, is_asked, times = EMPTY | {"name": asked.get("name")}, bool(asked.get("cron")), ""
    if asked.get("name"):
        with suppress(*([NotFound] if is_asked else [])):
            found = broker.get("schedules", asked.get("name"), count=0)
            fields |= fields_of(found) | seen_fields(found)
            times = retimed(found, asked)
    if is_asked:
        fields |= {name: asked.get(name) for name in WHEN} | {"time_zone": asked.get("time_zone", USUAL_ZONE)}
    coming: list[Any] = []
    if fields["cron"]:
        given = Asked({name: fields[name] for name in WHEN})
        coming = broker.post("schedules", "preview", body=when(given) | {"count": COMING})["coming"]
    shown = {"fields": fields, "coming": coming, "retimed": times}
    return shown | {"is_known": bool(fields["topic"]), "choices": list(MISSED)}


def blank_set(broker: Api, asked: Asked) -> Model:
    """Return the form fields without occurrences."""
    fields = EMPTY | {"name": asked.get("name")} | asked.given(*WHEN)
    return {"fields": fields, "coming": [], "is_known": bool(fields["name"]), "choices": list(MISSED)}


def fields_of(found: Model) -> Model:
    """Return the form fields of a schedule."""
    zone = zone_of(found["time_zone"])
    return {
        **{name: found[name] for name in ("name", "cron", "time_zone", *SENT)},
        **{name: wall(found[f"{name}_ms"], zone) for name in ("start", "end")},
        "keys": "\n".join(found["keys"]),
        "properties": pairs_text(found["properties"]),
        "missed_max": str(found["missed_max"]),
        "unfit": unfit(found),
        **body_fields(found),
    }


def seen_fields(found: Model) -> Model:
    """Return the fields of a form with what it shows of a schedule."""
    seen = {name: found[name] for name in SEEN} | {"body_sha256": sha256(body_bytes(found)).hexdigest()}
    when_seen = {name: found[name] for name in SEEN_WHEN}
    return {"was": found["name"], "seen": json.dumps(seen), "seen_when": json.dumps(when_seen)}


def retimed(found: Model, asked: Asked) -> str:
    """Return that the times of a schedule were changed since its form was opened, or an empty string.

    The preview of the form shows the times that its user has entered, and not those of the schedule.
    """
    before = seen_in(asked, "seen_when") if asked.get("seen_when") else {}
    if all(found[name] == before.get(name, found[name]) for name in SEEN_WHEN):
        return ""
    bounds = {"start": "not before", "end": "not after"}
    walls = {word: wall(found[f"{name}_ms"], zone_of(found["time_zone"])) for name, word in bounds.items()}
    said = "".join(f", {word} {text}" for word, text in walls.items() if text)
    return f"{found['cron']} in {found['time_zone']}{said}"


def body_bytes(found: Model) -> bytes:
    """Return the body of a schedule in an HTTP response."""
    if "body" in found:
        return str(found["body"]).encode()
    return base64.b64decode(found["body_base64"])


def pause(broker: Api, asked: Asked) -> Done:
    """Pause a schedule."""
    name = asked.required("name", "The schedule")
    broker.post("schedules", name, "pause", body={})
    return Done(f"{name} is paused: what occurs meanwhile is not sent, and not made up.", page_of(name))


def resume(broker: Api, asked: Asked) -> Done:
    """Resume a schedule."""
    name = asked.required("name", "The schedule")
    found = broker.post("schedules", name, "resume", body={})
    return Done(f"{name} goes on{upcoming(found)}.", page_of(name))


def remove(broker: Api, asked: Asked) -> Done:
    """Remove a schedule after its name was confirmed."""
    name = asked.required("name", "The schedule")
    if asked.required("typed", "The schedule's name, typed once more,") != name:
        raise ClientMistake(f"Another name was typed than {name}: it is not removed.")
    found = broker.delete("schedules", name)
    return Done(f"{name} is removed; it had sent {found['sent_count']:,} messages.", "/schedules")


def keep(broker: Api, asked: Asked) -> Done:
    """Create a schedule, or replace it if it is as the form showed it."""
    name = asked.required("name", "The name")
    wanted: Model = when(asked) | asked.given(*SENT) | asked.as_typed(*TYPED)
    wanted["topic"] = asked.required("topic", "The topic")
    wanted |= {"keys": lines_of(asked.whole("keys")), "properties": pairs_of(asked.whole("properties"))}
    if most := asked.get("missed_max"):
        if not is_count(most):
            raise ClientMistake(f"{most[:20]!r} is no number of missed runs.")
        wanted["missed_max"] = int(most)
    if asked.get("seen"):
        wanted["seen"] = seen_in(asked, "seen") if name == asked.get("was", name) else ABSENT
    found = broker.put("schedules", name, body=wanted | body_of(asked))
    paused = "; it is paused" if found["state"] == "PAUSED" else ""
    return Done(f"{name} is set{upcoming(found)}{paused}.", page_of(name))


def when(asked: Asked) -> Model:
    """Return the time fields of a schedule for the HTTP interface. Raises `ClientMistake`."""
    name = asked.get("time_zone", USUAL_ZONE)
    zone = zone_of(name)
    if zone is None:
        raise ClientMistake(f"The time zone is {name[:80]!r}: write it as Europe/London.")
    bounds = {f"{bound}_ms": moment_of(asked.get(bound), zone, bound) for bound in ("start", "end")}
    return {"cron": asked.required("cron", "The cron line"), "time_zone": name} | bounds


def moment_of(text: str, zone: ZoneInfo, field: str) -> int | None:
    """Return a local time of a time zone in ms since 1970, or None for an empty text.

    Raises `ClientMistake`.
    """
    if not text:
        return None
    try:
        return moments.due_ms(in_zone(text, zone), now_ms())
    except ValueError as error:
        raise ClientMistake(
            f"{field} is {text[:80]!r}: {error}. 2026-12-01 and 2026-12 will do, too."
        ) from error


def zone_of(name: str) -> ZoneInfo | None:
    """Return a time zone, or None if it is unknown."""
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo(name)
    return None


def wall(at_ms: str | None, zone: ZoneInfo | None) -> str:
    """Return the local time of a time zone with its UTC offset, or an empty string for None.

    Milliseconds are omitted if they are 0.
    """
    if at_ms is None:
        return ""
    at_s, rest_ms = divmod(int(at_ms), 1_000)
    local = datetime.fromtimestamp(at_s, UTC).replace(microsecond=rest_ms * 1_000).astimezone(zone or UTC)
    return local.isoformat(timespec="milliseconds" if rest_ms else "seconds")


def upcoming(found: Model) -> str:
    """Return the next occurrence as part of a sentence, or an empty string."""
    return f", next {found['coming'][0]['local'].replace('T', ' ')}" if found["coming"] else ""


def page_of(name: str) -> str:
    """Return the path of a schedule's page."""
    return f"/schedules/one?name={quote(name, safe='')}"


PAGE: Final = Page("/schedules", "Schedules", "schedules.html", read, entry="Schedules")
ONE: Final = Page(
    "/schedules/one",
    "Schedule",
    "schedule.html",
    read_one,
    acts={"pause": pause, "resume": resume, "remove": remove},
)
SET: Final = Page(
    "/schedules/set",
    "Set a schedule",
    "schedule_set.html",
    read_set,
    acts={"keep": keep},
    every_ms=0,
    blank=blank_set,
)
