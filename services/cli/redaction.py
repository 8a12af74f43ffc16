"""What a report for strangers leaves out: secrets, and what applications put into messages.

Two nets. The first is by name: of each answer only fields go in that can hold no body, property or secret
(`kept`). The second is by sight, over every text of the report: passwords in URLs and in sentences, tokens,
and the very secrets that this process knows. A sentence of an engine may quote what it was given.

    postgresql://tidewheel:PASSWORD@db/orders     the password goes, up to the last @ of the word
    password=..., secret: ..., Bearer ...         the value goes
    tw_3f9a61c07b52_...                           the secret part of a user's token goes

Weak spot: a secret that somebody has used as the name of a topic, a group or a user is a name here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

OUT: Final = "[left out]"
SECRET_CHARACTERS_MIN: Final = 4
"""A known secret that is shorter is not looked for: it is part of other words."""
_URL: Final = re.compile(r"(\w+://[^\s\"'/@:]*):[^\s\"']*@")
_NAMED: Final = re.compile(
    r"(?i)\b((?:ssl)?password|passwd|pwd|secret|token|signature)(\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s&,;\"']+)"
)
_BEARER: Final = re.compile(r"(?i)\b(Bearer|Basic)\s+\S+")
_TOKEN: Final = re.compile(r"(tw_[0-9a-f]{12})_[A-Za-z0-9_-]+")
_LABEL: Final = re.compile(r'(filter=)"(?:[^"\\]|\\.)*"')


def scrubbed(text: str, secrets: Collection[str] = ()) -> str:
    """Return a text without what looks like a secret, or is one of those that are known."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_CHARACTERS_MIN:
            text = text.replace(secret, OUT)
    text = _URL.sub(rf"\1:{OUT}@", text)
    text = _NAMED.sub(rf"\1\2{OUT}", text)
    text = _BEARER.sub(rf"\1 {OUT}", text)
    return _TOKEN.sub(rf"\1_{OUT}", text)


def scrubbed_all(value: Any, secrets: Collection[str] = ()) -> Any:
    """Return what JSON can hold, each text in it scrubbed, names of fields too."""
    if isinstance(value, str):
        return scrubbed(value, secrets)
    if isinstance(value, Mapping):
        return {scrubbed(str(name), secrets): scrubbed_all(one, secrets) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed_all(one, secrets) for one in value]
    return value


def without_filters(text: str) -> str:
    """Return metrics without the filters of groups, which are written of values of properties."""
    return _LABEL.sub(rf'\1"{OUT}"', text)


def kept(fields: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what takes these fields of an answer and leaves all others."""
    return lambda found: {name: found[name] for name in fields if name in found}
