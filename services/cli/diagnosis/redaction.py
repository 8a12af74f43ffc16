"""Redaction of support bundles: secrets, message bodies and properties.

Redaction uses two filters. An allow-list (`kept`) selects fields that cannot contain a body, a property or a
secret. Patterns are then applied to all texts, because error messages may quote their input. The patterns
match passwords in URLs and sentences, tokens, and the known secrets of this process.

    postgresql://tidewheel:PASSWORD@db/orders     password removed, up to the last @ of the word
    password=..., secret: ..., Bearer ...         value removed
    tw_3f9a61c07b52_...                           secret part of a user's token removed

Limitation: a secret used as the name of a topic, group or user is not recognized.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

OUT: Final = "[left out]"
SECRET_CHARACTERS_MIN: Final = 4
"""Shorter secrets are not searched for, because they occur in other words."""
_URL: Final = re.compile(r"(\w+://[^\s\"'/@:]*):[^\s\"']*@")
_NAMED: Final = re.compile(
    r"(?i)\b((?:ssl)?password|passwd|pwd|secret|token|signature)(\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s&,;\"']+)"
)
_BEARER: Final = re.compile(r"(?i)\b(Bearer|Basic)\s+\S+")
_TOKEN: Final = re.compile(r"(tw_[0-9a-f]{12})_[A-Za-z0-9_-]+")
_LABEL: Final = re.compile(r'(filter=)"(?:[^"\\]|\\.)*"')


def scrubbed(text: str, secrets: Collection[str] = ()) -> str:
    """Remove known secrets and patterns of secrets from a text."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_CHARACTERS_MIN:
            text = text.replace(secret, OUT)
    text = _URL.sub(rf"\1:{OUT}@", text)
    text = _NAMED.sub(rf"\1\2{OUT}", text)
    text = _BEARER.sub(rf"\1 {OUT}", text)
    return _TOKEN.sub(rf"\1_{OUT}", text)


def scrubbed_all(value: Any, secrets: Collection[str] = ()) -> Any:
    """Scrub all texts of a JSON value, including field names."""
    if isinstance(value, str):
        return scrubbed(value, secrets)
    if isinstance(value, Mapping):
        return {scrubbed(str(name), secrets): scrubbed_all(one, secrets) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed_all(one, secrets) for one in value]
    return value


def without_filters(text: str) -> str:
    """Remove group filters from metrics, because they contain property values."""
    return _LABEL.sub(rf'\1"{OUT}"', text)


def kept(fields: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that keeps only the given fields of an answer."""
    return lambda found: {name: found[name] for name in fields if name in found}
