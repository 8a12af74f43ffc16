"""`tidewheel sample`: each language and use has its program; what a client lacks is said, with another way.

`tests/clients/test_samples.py` runs the programs.
"""

from __future__ import annotations

import re

import pytest

from services.cli.sample import FORMS, LACKING, Language, Use
from tests.command import tidewheel

SAMPLES = [(language, use) for language in Language for use in Use if (language, use) not in LACKING]
ADDRESS = "broker.example:9000"


def printed(*words: str) -> str:
    done = tidewheel("sample", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refusal(*words: str) -> str:
    done = tidewheel("sample", *words)
    assert (done.returncode, done.stdout) == (2, "")
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(("language", "use"), SAMPLES)
def test_each_use_in_each_language_has_a_topic_and_a_command_of_its_own(language: str, use: str) -> None:
    text = printed(language, "--use", use)
    assert f"tidewheel sample {language} --use {use} > " in text
    assert set(re.findall(r'["\'](sample-[a-z-]+)["\']', text)) == {f"sample-{language}-{use}"}


@pytest.mark.parametrize("language", Language)
def test_without_a_use_it_is_the_plain_one(language: str) -> None:
    assert printed(language) == printed(language, "--use", "plain")


@pytest.mark.parametrize(("language", "use"), SAMPLES)
def test_it_dials_the_endpoint(language: Language, use: str) -> None:
    usual, other = printed(language, "--use", use), printed(language, "--use", use, "--endpoint", ADDRESS)
    assert usual.count(FORMS[language].endpoint) == other.count(ADDRESS) == 1
    assert FORMS[language].endpoint not in other


@pytest.mark.parametrize(("language", "use"), [one for one in SAMPLES if FORMS[one[0]].with_tls])
def test_it_uses_tls_or_not_as_asked(language: Language, use: str) -> None:
    form = FORMS[language]
    with_tls, without = (printed(language, "--use", use, option) for option in ("--tls", "--no-tls"))
    assert (with_tls.count(form.with_tls), with_tls.count(form.without_tls)) == (1, 0)
    assert (without.count(form.with_tls), without.count(form.without_tls)) == (0, 1)
    assert printed(language, "--use", use) in (with_tls, without)


def test_tls_is_not_promised_where_the_client_has_none() -> None:
    assert "speaks no TLS" in refusal("rust", "--tls")


@pytest.mark.parametrize(("language", "use"), LACKING)
def test_what_a_client_lacks_is_said_with_another_way(language: str, use: str) -> None:
    other = re.search(r"tidewheel sample ([a-z-]+) --use ([a-z]+)", refusal(language, "--use", use))
    assert other is not None
    printed(other[1], "--use", other[2])


def test_a_wrong_use_is_told_the_list() -> None:
    said = refusal("go", "--use", "later")
    assert "'later'" in said
    for use in Use:
        assert f"'{use}'" in said


def test_an_endpoint_that_is_none_is_refused() -> None:
    assert "'nowhere' is no endpoint" in refusal("go", "--endpoint", "nowhere")
