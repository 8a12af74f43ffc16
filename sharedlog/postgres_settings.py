"""What a PostgreSQL must be set to for a shared log to be kept, and which command sets it.

fsync, full_page_writes      on: else a power cut loses what was accepted, or all of it
synchronous_commit           on or remote_apply, as a session has it: roles, databases and poolers overrule
synchronous_standby_names    as many standbys in step as it needs: else no commit is ever answered
a standby, read only         takes no writes
no synchronous standby       a choice, which is told and not refused: one machine has what was accepted

Weak spot: how a standby syncs, and whether two lie on one machine, no setting of the primary tells.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SETTINGS: Final = ("fsync", "full_page_writes", "synchronous_commit", "transaction_read_only")
COMMITS_KEPT: Final = ("on", "remote_apply")
_WHY: Final = {
    "fsync": "a power cut loses records that were accepted, or the whole database",
    "full_page_writes": "a power cut amid a write leaves pages that nobody can read",
}
_NAMED: Final = re.compile(r"\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\(", re.IGNORECASE)


class Settings(NamedTuple):
    """What a session with a PostgreSQL has found: values by their settings, and where each comes from."""

    values: dict[str, str]
    sources: dict[str, str]
    is_standby: bool
    user: str
    database: str
    standby_names: str
    """`synchronous_standby_names`."""
    in_step: list[str]
    """The standbys that commits wait for, by their `application_name`."""
    standby_count: int
    """All standbys, those out of step and the asynchronous ones too."""
    unseen_count: int
    """Standbys of which this user may not see whether they are in step."""

    @property
    def needed_count(self) -> int:
        """How many standbys must have a record before its commit is answered."""
        if not self.standby_names.strip():
            return 0
        named = _NAMED.match(self.standby_names)
        return int(named[1]) if named else 1


def trouble_of(found: Settings) -> list[str]:
    """Return a sentence for each setting under which records are lost, or none is taken."""
    said = [_switched_off(found, name) for name in _WHY if found.values[name] != "on"]
    if found.values["synchronous_commit"] not in COMMITS_KEPT:
        said.append(_commit(found))
    if found.is_standby:
        said.append(
            "This PostgreSQL is a standby, so it takes no record. Name the primary in the URL, or all "
            f"servers: postgresql://{found.user}@HOST1,HOST2/{found.database}?target_session_attrs=read-write"
        )
    elif found.values["transaction_read_only"] == "on":
        said.append(
            f"Transactions of {found.user} are read only, so no record is taken. Set it: "
            f"{_for_role(found, 'default_transaction_read_only', 'off')}"
        )
    elif len(found.in_step) + found.unseen_count < found.needed_count:
        said.append(_out_of_step(found))
    return said


def notes_of(found: Settings) -> list[str]:
    """Return a sentence for each choice that somebody may not know of, with what makes another one."""
    said = []
    if not found.needed_count and not found.is_standby:
        beside = f" ({found.standby_count} follow, and nobody waits for them)" if found.standby_count else ""
        said.append(
            "What is acknowledged is on one machine of PostgreSQL's: synchronous_standby_names is empty"
            f"{beside}. With standbys s1 and s2: {_altered('synchronous_standby_names', 'ANY 1 (s1, s2)')}"
        )
    if found.needed_count and found.unseen_count:
        said.append(
            f"{found.user} may not see whether standbys are in step. Let it: GRANT pg_monitor TO "
            f"{_quoted(found.user)};"
        )
    return said


def _switched_off(found: Settings, name: str) -> str:
    """Return what is lost while a setting is off, and what switches it on."""
    said = f"{name} of PostgreSQL is off, so {_WHY[name]}."
    if found.sources[name] == "command line":
        return f"{said} Start it without -c {name}=off in its command: no other command switches it on."
    return (
        f"{said} Set it: ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf(); then run sync as root there."
    )


def _commit(found: Settings) -> str:
    value = found.values["synchronous_commit"]
    return (
        f"synchronous_commit is {value} in sessions of {found.user}, though they ask for on, so a crash "
        "loses records that were accepted. Set it: "
        f"{_for_role(found, 'synchronous_commit', 'on')} and name no pooler in the URL, but the PostgreSQL."
    )


def _out_of_step(found: Settings) -> str:
    needed, in_step = found.needed_count, ", ".join(found.in_step) or "none"
    fewer = f"ANY {len(found.in_step)} ({', '.join(map(_quoted, found.in_step))})" if found.in_step else ""
    return (
        f"synchronous_standby_names is {found.standby_names!r} and needs {needed} in step; now: {in_step}. "
        "So no record is accepted. Start standbys of these names (application_name in primary_conninfo), or "
        "do without, and a lost machine may take records along: "
        f"{_altered('synchronous_standby_names', fewer)}"
    )


def _altered(name: str, value: str) -> str:
    """Return the command that sets a setting of the server."""
    return f"ALTER SYSTEM SET {name} = '{value}'; SELECT pg_reload_conf();"


def _for_role(found: Settings, name: str, value: str) -> str:
    """Return the command that sets a setting for a user in a database, whatever else says otherwise."""
    return f"ALTER ROLE {_quoted(found.user)} IN DATABASE {_quoted(found.database)} SET {name} = {value};"


def _quoted(name: str) -> str:
    """Return a name as SQL wants it."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
