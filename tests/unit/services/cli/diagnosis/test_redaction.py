"""What a report for strangers leaves out."""

from __future__ import annotations

import json

import pytest

from services.cli.diagnosis.redaction import kept, scrubbed, scrubbed_all, without_filters

SECRET = "hunter-2-s3cret"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://tidewheel:{SECRET}@db/orders",
        f"postgresql://tidewheel:{SECRET}/with@signs@db:5432/orders?sslmode=require",
        f"kafka://user:{SECRET}@host:9092/topic refused it",
        f"postgresql://db/orders?user=a&password={SECRET}&x=1",
        f"connection failed: host=db password='{SECRET}' user=a",
        f'password: "{SECRET}"',
        f"Authorization: Bearer {SECRET}",
        f"token={SECRET}",
        f"tw_3f9a61c07b52_{SECRET}",
        f"Credential=a, Signature={SECRET}",
    ],
)
def test_what_looks_like_a_secret_goes_and_the_rest_stays(text: str) -> None:
    found = scrubbed(text)
    assert SECRET not in found
    assert "[left out]" in found
    for word in ("tidewheel", "db", "host", "tw_3f9a61c07b52"):
        assert (word in found) is (word in text)


def test_a_secret_that_is_known_goes_wherever_it_is() -> None:
    found = scrubbed_all({SECRET: [f"a {SECRET} b", {"x": SECRET}], "n": 7}, {SECRET})
    assert SECRET not in json.dumps(found)
    assert found["n"] == 7


def test_text_without_a_secret_is_as_it_was() -> None:
    text = "http://127.0.0.1:8088 is ready; topic orders, group shop: 7 tokens; a@b.example"
    assert scrubbed(text, {"7", ""}) == text


def test_filters_of_groups_leave_the_metrics() -> None:
    line = 'mq_filter_waiting_messages{topic="t",filter="SQL card = \\"4111\\"",node_id="a"} 1.0'
    found = without_filters(line)
    assert "4111" not in found
    assert found.endswith('node_id="a"} 1.0')


def test_only_named_fields_are_kept() -> None:
    assert kept(("a", "b"))({"a": 1, "body": "x"}) == {"a": 1}
