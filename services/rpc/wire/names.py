"""Conversion between names on the wire and stored names.

A namespace is a prefix, `namespace%name`, as in RocketMQ.

On the wire, a name is a pair (namespace, name); in the store, it is one string. Without a namespace, the two
are equal. A namespace cannot contain `%`. The first `%` therefore ends the namespace, names in different
namespaces are never equal, and no name equals an internal topic such as `%DLQ%<group>`. An empty name in a
namespace remains empty.

A name may be converted before its topic or group is validated. It is truncated to a length that is refused
later, so that caches of names cannot grow by megabytes of untrusted input.
"""

from __future__ import annotations

from commitlog import limits
from services.rpc.generated.definition_pb2 import Resource
from tidewheel.errors import IllegalTopic

SEPARATOR = "%"
CHARACTERS_KEPT_MAX = 2 * limits.TOPIC_CHARACTERS_MAX


def stored_name(resource: Resource) -> str:
    """Return the stored name of a topic or a group. Raises `IllegalTopic`."""
    namespace, name = resource.resource_namespace, resource.name
    if not namespace or not name:
        return name[:CHARACTERS_KEPT_MAX]
    if SEPARATOR in namespace:
        shown = namespace[: limits.TOPIC_CHARACTERS_MAX]
        raise IllegalTopic(f"The namespace {shown!r} must not hold {SEPARATOR!r}. Choose another.")
    return f"{namespace}{SEPARATOR}{name}"[:CHARACTERS_KEPT_MAX]


def wire_name(stored: str, namespace: str) -> Resource:
    """Return the resource that a client of `namespace` uses for a stored name."""
    return Resource(resource_namespace=namespace, name=name_within(stored, namespace))


def name_within(stored: str, namespace: str) -> str:
    """Return the name that a client of `namespace` uses for a stored name."""
    return stored.removeprefix(f"{namespace}{SEPARATOR}") if namespace else stored
