"""Validation of the arguments of barrier, outbox and guard.

SQLAlchemy's engines, sessions and factories are easily confused with each other and with their asynchronous
variants, and a wrong object fails deep inside SQLAlchemy or not at all. Arguments are therefore validated on
entry.

All functions raise:
    ClientMistake: With the given object, the expected type, and how to get it.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from tidewheel.errors import ClientMistake
from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ASYNCHRONOUS = AsyncEngine, AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
_BOUND = Connection, Session, scoped_session, sessionmaker
_SHOWN_CHARACTERS = 80


def kind_of(thing: object) -> str:
    """Return the full name of an object's type."""
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


SECONDS_OF_NOW = range(1_000_000_000, 10_000_000_000)
"""Times from 2001 to 2286 in seconds. As milliseconds, they are before May 1970."""


def refuse_no_engine(engine: object) -> None:
    """Refuse an object that is not an Engine."""
    if isinstance(engine, Engine):
        if getattr(engine.dialect, "is_async", False):
            raise ClientMistake(
                f"It blocks, and {engine.driver} is a driver for a loop. Give another's engine."
            )
        return
    raise ClientMistake(
        f"It takes an Engine of SQLAlchemy, and this is {kind_of(engine)}. {_way_from(engine)}"
    )


def _way_from(thing: object) -> str:
    if isinstance(thing, _ASYNCHRONOUS):
        return "It blocks: give create_engine(url), of the same database with a driver that blocks."
    if isinstance(thing, _BOUND):
        return "Give the engine that it is bound to."
    if isinstance(thing, str | URL):
        return "Give create_engine(url)."
    return "Give what create_engine(url) returns."


def refuse_no_session(session: object) -> None:
    """Refuse an object that is not a Session, such as a connection of Django or a driver."""
    if isinstance(session, Session | scoped_session):
        return
    if isinstance(session, AsyncSession | async_scoped_session):
        raise ClientMistake(
            "It takes a Session, and this is an AsyncSession: use idempotence.async_once, and "
            "await session.execute(outbox.adding(message))."
        )
    if isinstance(session, Engine | AsyncEngine | sessionmaker | async_sessionmaker | str | URL):
        way = "Open one: with sessionmaker(engine).begin() as session."
    elif isinstance(session, Connection):
        way = "Open one on it: Session(connection)."
    else:
        way = (
            "Of another library's connection, make one on the same transaction, or write the outbox's row by "
            "an INSERT of your own."
        )
    raise ClientMistake(f"It takes a Session of SQLAlchemy, and this is {kind_of(session)}. {way}")


def refuse_no_async_session(session: object) -> None:
    """Refuse an object that is not an AsyncSession."""
    if isinstance(session, AsyncSession | async_scoped_session):
        return
    is_session = isinstance(session, Session | scoped_session)
    way = "use once for it" if is_session else "open one: async with sessions.begin() as session"
    raise ClientMistake(f"It takes an AsyncSession of SQLAlchemy, and this is {kind_of(session)}: {way}.")


def refuse_no_redis(redis: object) -> None:
    """Refuse an object that is not a Redis client, and an asynchronous client, whose results would always be
    true.
    """
    if not hasattr(redis, "register_script") or iscoroutinefunction(getattr(redis, "execute_command", None)):
        raise ClientMistake(f"It takes a redis.Redis, which blocks, and this is {kind_of(redis)}.")


def refuse_no_factory(sessions: object) -> None:
    """Refuse an object that is not a sessionmaker."""
    if not isinstance(sessions, sessionmaker):
        raise _no_factory(sessions)


def session_from(sessions: object) -> Session:
    """Return a session of a session factory. Refuses a factory that does not create a synchronous Session."""
    session = sessions() if callable(sessions) else None
    if not isinstance(session, Session):
        raise _no_factory(sessions)
    return session


def _no_factory(sessions: object) -> ClientMistake:
    return ClientMistake(
        f"It takes a session factory, and this is {kind_of(sessions)}. Give sessionmaker(engine), of an "
        "engine that blocks: it works in threads."
    )


def refuse_no_async_factory(sessions: object) -> None:
    """Refuse an object that is not an async_sessionmaker."""
    if not isinstance(sessions, async_sessionmaker):
        raise ClientMistake(
            f"It takes an asynchronous session factory, and this is {kind_of(sessions)}. Give "
            "async_sessionmaker(async_engine), or leave it out."
        )


def refuse_no_function(handle: object) -> None:
    """Refuse an object that is not callable."""
    if not callable(handle):
        raise ClientMistake(f"It takes a function of session and message, and this is {kind_of(handle)}.")


def refuse_no_message(message: object, *attributes: str) -> None:
    """Refuse an object without the attributes of a message."""
    if not all(hasattr(message, name) for name in attributes):
        raise ClientMistake(
            f"It takes a message that was received, and this is {kind_of(message)}: {shown(message)}."
        )


def refuse_no_time(before_ms: object) -> None:
    """Refuse a value that is not a time in milliseconds, because a database may treat it as later than every
    time.
    """
    if isinstance(before_ms, bool) or not isinstance(before_ms, int) or before_ms < 0:
        raise ClientMistake(f"before_ms is {shown(before_ms)}: give whole milliseconds since 1970.")
    if before_ms in SECONDS_OF_NOW:
        raise ClientMistake(
            f"before_ms is {before_ms}, which is in early 1970, or in seconds: give {before_ms * 1000}."
        )


def refuse_no_count(value: object, field: str, least: int = 1) -> None:
    """Refuse a value that is not an int or is below the minimum."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ClientMistake(f"{field} is {shown(value)}: give a whole number, {least} or more.")


def row_ids(ids: Iterable[int]) -> list[int]:
    """Return row ids, sorted and without duplicates."""
    try:
        found = set(ids)
        wrong = next((one for one in found if not isinstance(one, int)), None)
    except TypeError:
        raise ClientMistake(f"ids is {shown(ids)}: give a list, such as [17].") from None
    if wrong is not None:
        raise ClientMistake(f"An id is {shown(wrong)}: give the number, such as row.id.")
    return sorted(found)


def refuse_no_name(value: object, field: str, way: str = "give a text") -> None:
    """Refuse an empty text or a value of another type, because it would match every message."""
    if not isinstance(value, str) or not value:
        raise ClientMistake(f"{field} is {shown(value)}: {way}.")


def sending_of(producer: Any, call: str) -> Callable[..., Any]:
    """Return a method of an official producer."""
    method: Callable[..., Any] | None = getattr(producer, call, None)
    if isinstance(producer, type) or method is None or not callable(method):
        raise ClientMistake(
            "It takes a Client, or a started producer of the official client, and this is "
            f"{kind_of(producer)}. Give tidewheel.Client(url)."
        )
    return method


def shown(value: object) -> str:
    """Return a value as shown in error messages."""
    return f"{value!r:.{_SHOWN_CHARACTERS}}"
