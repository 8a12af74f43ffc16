"""Checks the PostgreSQL settings on which the durability of a shared log depends.

Each message includes the command that corrects the setting.

fsync, full_page_writes      Must be on. Otherwise, accepted records or the whole database can be lost in a
                             power failure.
synchronous_commit           Must be on or remote_apply in the session. A setting of the role or database, or
                             a connection pooler, can override the requested value.
synchronous_standby_names    Specifies the number of synchronous standbys. While fewer standbys are
                             connected, commits are not acknowledged.
standby or read-only server  Cannot be used, because the server rejects writes.
no synchronous standby       Is allowed but reported, because accepted records are stored on only one machine.

Limitation: the primary cannot determine whether a standby syncs received WAL to disk, or whether two standbys
run on the same machine.
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
    """The settings of a session, and the state of the standbys.

    `values` contains the value of each setting in `SETTINGS`, and `sources` contains its source as reported
    by `pg_settings`. The keys are the names of the settings.
    """

    values: dict[str, str]
    sources: dict[str, str]
    is_standby: bool
    user: str
    database: str
    standby_names: str
    """Value of `synchronous_standby_names`."""
    in_step: list[str]
    """`application_name` of each synchronous standby."""
    standby_count: int
    """Number of connected standbys, including asynchronous standbys and standbys that are catching up."""
    unseen_count: int
    """Number of standbys for which the user has no permission to read `sync_state`."""

    @property
    def needed_count(self) -> int:
        """Return the number of standbys that must confirm a commit."""
        if not self.standby_names.strip():
            return 0
        named = _NAMED.match(self.standby_names)
        return int(named[1]) if named else 1


def find_setting_faults(found: Settings) -> list[str]:
    """Return a message for each setting that can cause records to be lost or rejected."""
    said = [_describe_disabled(found, name) for name in _WHY if found.values[name] != "on"]
    if found.values["synchronous_commit"] not in COMMITS_KEPT:
        said.append(_describe_commit(found))
    if found.is_standby:
        said.append(
            "This PostgreSQL is a standby, so it takes no record. Name the primary in the URL, or all "
            f"servers: postgresql://{found.user}@HOST1,HOST2/{found.database}?target_session_attrs=read-write"
        )
    elif found.values["transaction_read_only"] == "on":
        said.append(
            f"Transactions of {found.user} are read only, so no record is taken. Set it: "
            f"{_alter_role(found, 'default_transaction_read_only', 'off')}"
        )
    elif len(found.in_step) + found.unseen_count < found.needed_count:
        said.append(_describe_standbys(found))
    return said


def find_risky_settings(found: Settings) -> list[str]:
    """Return a message for each setting that is risky but allowed.

    Each message includes a command that corrects the setting.
    """
    said = []
    if not found.needed_count and not found.is_standby:
        beside = f" ({found.standby_count} follow, and nobody waits for them)" if found.standby_count else ""
        said.append(
            "What is acknowledged is on one machine of PostgreSQL's: synchronous_standby_names is empty"
            f"{beside}. With standbys s1 and s2: "
            f"{_alter_system('synchronous_standby_names', 'ANY 1 (s1, s2)')}"
        )
    if found.needed_count and found.unseen_count:
        said.append(
            f"{found.user} may not see whether standbys are in step. Let it: GRANT pg_monitor TO "
            f"{_quote(found.user)};"
        )
    return said


def _describe_disabled(found: Settings, name: str) -> str:
    """Return a message about a disabled setting, the possible data loss, and the correction."""
    said = f"{name} of PostgreSQL is off, so {_WHY[name]}."
    if found.sources[name] == "command line":
        return f"{said} Start it without -c {name}=off in its command: no other command switches it on."
    return (
        f"{said} Set it: ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf(); then run sync as root there."
    )


def _describe_commit(found: Settings) -> str:
    value = found.values["synchronous_commit"]
    return (
        f"synchronous_commit is {value} in sessions of {found.user}, though they ask for on, so a crash "
        "loses records that were accepted. Set it: "
        f"{_alter_role(found, 'synchronous_commit', 'on')} and name no pooler in the URL, but the PostgreSQL."
    )


def _describe_standbys(found: Settings) -> str:
    needed, in_step = found.needed_count, ", ".join(found.in_step) or "none"
    fewer = f"ANY {len(found.in_step)} ({', '.join(map(_quote, found.in_step))})" if found.in_step else ""
    return (
        f"synchronous_standby_names is {found.standby_names!r} and needs {needed} in step; now: {in_step}. "
        "So no record is accepted. Start standbys of these names (application_name in primary_conninfo), or "
        "do without, and a lost machine may take records along: "
        f"{_alter_system('synchronous_standby_names', fewer)}"
    )


def _alter_system(name: str, value: str) -> str:
    """Return the SQL statements that change a setting of the server."""
    return f"ALTER SYSTEM SET {name} = '{value}'; SELECT pg_reload_conf();"


def _alter_role(found: Settings, name: str, value: str) -> str:
    """Return the SQL statement that changes a setting for a user in a database.

    A setting for a user in a database overrides the setting of the server.
    """
    return f"ALTER ROLE {_quote(found.user)} IN DATABASE {_quote(found.database)} SET {name} = {value};"


def _quote(name: str) -> str:
    """Return a name as an SQL identifier, in quotation marks if necessary."""

    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
