"""Names on the wire and names in the store: a namespace is a prefix, `namespace%name`, as RocketMQ writes it.

The wire carries (namespace, name); the store knows one word. Without a namespace they are the same. A
namespace holds no `%`: so a word's first one ends its namespace, no two names in namespaces are one word, and
none is a topic of the broker's own such as `%DLQ%<group>`. No name in a namespace is no name.

A name may come before anybody looks whether there can be such a topic or group. It is cut to a length that
is refused wherever one is looked at, so that what keeps names to be quick keeps no megabytes for a stranger.
"""

from __future__ import annotations

from commitlog import limits
from services.rpc.generated.definition_pb2 import Resource
from tidewheel.errors import IllegalTopic

SEPARATOR = "%"
CHARACTERS_KEPT_MAX = 2 * limits.TOPIC_CHARACTERS_MAX


def stored_name(resource: Resource) -> str:
    """Return the word under which the store knows a topic or a group; raise `IllegalTopic`."""
    namespace, name = resource.resource_namespace, resource.name
    if not namespace or not name:
        return name[:CHARACTERS_KEPT_MAX]
    if SEPARATOR in namespace:
        shown = namespace[: limits.TOPIC_CHARACTERS_MAX]
        raise IllegalTopic(f"The namespace {shown!r} must not hold {SEPARATOR!r}. Choose another.")
    return f"{namespace}{SEPARATOR}{name}"[:CHARACTERS_KEPT_MAX]


def wire_name(stored: str, namespace: str) -> Resource:
    """Return the resource that a client of `namespace` knows under this stored name."""
    return Resource(resource_namespace=namespace, name=name_within(stored, namespace))


def name_within(stored: str, namespace: str) -> str:
    """Return the name that a client of `namespace` knows for a word of the store."""
    return stored.removeprefix(f"{namespace}{SEPARATOR}") if namespace else stored
