"""The documented names of a mapping are those that there are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from spark_jobs.inputs.mapping import SHOP, as_mapping
from spark_jobs.inputs.mapping_docs import MEANINGS, every_name, example, table

ROOT = Path(__file__).parents[4]


def test_every_name_has_a_meaning_and_every_meaning_a_name() -> None:
    names = [(one.section, one.key) for one in every_name()]
    assert sorted(names) == sorted((section, key) for section, keys in MEANINGS.items() for key in keys)


def test_the_documented_table_is_that_of_the_code() -> None:
    assert table() in (ROOT / "docs" / "audit.md").read_text(), "tidewheel audit mapping --table"


def test_the_example_changes_nothing_also_with_its_comments_off() -> None:
    assert as_mapping(tomllib.loads(example()), "example") == SHOP
    named = as_mapping(tomllib.loads(re.sub(r"^#(?=\w+ = )", "", example(), flags=re.MULTILINE)), "example")
    assert (named.topics, named.groups, named.bodies, named.redis) == (
        SHOP.topics, SHOP.groups, SHOP.bodies, SHOP.redis
    )  # fmt: skip
    for ours in ("orders", "order_lines", "pushes", "carts", "ledger"):
        there, shops = getattr(named, ours), getattr(SHOP, ours)
        assert (there.name, there.columns) == (shops.name, shops.columns)


def test_what_may_lack_is_what_the_mapping_lets_lack() -> None:
    lacking = {(one.section, one.key) for one in every_name() if one.may_lack}
    assert ("order_lines", "table") in lacking
    for one in every_name():
        if one.section in ("orders", "order_lines", "pushes", "carts", "ledger"):
            given = {one.section: {one.key: ""}}
            if one.may_lack:
                as_mapping(given, "names.toml")
