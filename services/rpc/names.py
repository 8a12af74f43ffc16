"""Names on the wire and names in the store: a namespace is a prefix, `namespace%name`, as RocketMQ writes it.

The wire carries (namespace, name); the store knows one word. Without a namespace they are the same.
"""

from __future__ import annotations

from services.rpc.generated.definition_pb2 import Resource

SEPARATOR = "%"


def stored_name(resource: Resource) -> str:
    """Return the word under which the store knows a topic or a group."""
    if not resource.resource_namespace:
        return resource.name
    return f"{resource.resource_namespace}{SEPARATOR}{resource.name}"


def wire_name(stored: str, namespace: str) -> Resource:
    """Return the resource that a client of `namespace` knows under this stored name."""
    return Resource(resource_namespace=namespace, name=name_within(stored, namespace))


def name_within(stored: str, namespace: str) -> str:
    """Return the name that a client of `namespace` knows for a word of the store."""
    return stored.removeprefix(f"{namespace}{SEPARATOR}") if namespace else stored
