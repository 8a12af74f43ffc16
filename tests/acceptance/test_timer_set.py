"""`tidewheel timer set --from`: rows of a file become timers, and each bad row is reported with its line."""

from __future__ import annotations

import json
import re
from pathlib import Path

from commitlog import limits
from tests.command import tidewheel
from tidewheel.testing.process import BrokerProcess

CSV = """topic,body,in,timer_key,keys,tag,properties.shop,unique
reminders,hello,1h,a,k1 k2,red,7,
reminders,"he said ""hi""
on two lines",2h,b,,,,
,no topic,1h,c,,,,
reminders,no time,,d,,,,
reminders,wrong time,soon,e,,,,
reminders,too,many,cells,in,this,row,x,y
"""


def timers(broker: BrokerProcess) -> list[dict[str, object]]:
    """Return the pending timers as the command lists them."""
    done = tidewheel("timer", "ls", "--json", "--limit", 1000, "--http", broker.http)
    return list(json.loads(done.stdout)["timers"])


def test_rows_of_a_csv_file_are_set_and_bad_ones_reported(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "reminders.csv"
    file.write_text(CSV)
    for instead in ("", " (2 in place of a pending timer)"):
        done = tidewheel("timer", "set", "--from", file, "--http", broker.http)
        assert f"2 timers were set{instead}, 4 rows were refused" in done.stdout, done.stderr
        assert done.returncode != 0
        for said in ("line 5: ", "line 6: ", "line 7: ", "line 8: ", "The row has no time", "has 9 cells"):
            assert said in done.stderr, said
    found = [one for one in timers(broker) if one["topic"] == "reminders"]
    assert {one["timer_key"] for one in found} == {"a", "b"}
    assert len(found) == 2, "a repeated row replaces the timer of its key"
    topic = tidewheel("timer", "set", "--from", file, "--topic", "default", "--http", broker.http)
    assert "3 timers were set" in topic.stdout, topic.stderr


def test_a_quote_that_is_never_closed_is_refused_with_its_line(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "quotes.csv"
    torn = 'payments,"a,1h,q:1\npayments,b,1h,q:2\npayments,c"x,1h,q:3\n'
    file.write_text('topic,body,in,timer_key\npayments,"two\nlines",1h,q:0\n' + torn)
    done = tidewheel("timer", "set", "--from", file, "--http", broker.http)
    assert done.returncode == 2
    assert "line 4: " in done.stderr
    assert "a quote is not closed" in done.stderr
    assert [one["timer_key"] for one in timers(broker) if one["topic"] == "payments"] == ["q:0"]


def test_keys_and_properties_of_cells_are_those_of_the_message(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "cells.csv"
    file.write_text(
        "body,in,timer_key,keys,properties,properties.shop\n"
        "x,1h,blanks,k1 k2,,\n"
        'x,1h,commas,"k1,k2",,\n'
        'x,1h,json,"[""k1"",""k2""]","{""region"":""eu""}",7\n'
        "x,1h,refused,,region=eu,\n"
    )
    done = tidewheel("timer", "set", "--from", file, "--topic", "cells", "--http", broker.http)
    assert "line 5: " in done.stderr
    assert "use a column properties.NAME" in done.stderr
    found = {one["timer_key"]: one["keys"] for one in timers(broker) if one["topic"] == "cells"}
    assert found == {"blanks": ["k1", "k2"], "commas": ["k1", "k2"], "json": ["k1", "k2"]}
    for name in ("region=eu", "shop=7"):
        wanted = ("--topic", "cells", "--property", name)
        listed = tidewheel("timer", "ls", *wanted, "--json", "--http", broker.http).stdout
        assert [one["timer_key"] for one in json.loads(listed)["timers"]] == ["json"]


def test_an_error_of_a_row_is_about_the_row_and_not_about_its_batch(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "errors.csv"
    file.write_text(
        "topic,body,in,priority,keys\n,no topic,1h,,\nerrors,x,1h,,\nerrors,x,soon,,\nerrors,x,1h,high,\n"
    )
    done = tidewheel("timer", "set", "--from", file, "--http", broker.http)
    assert done.returncode == 2
    assert "line 2: topic is missing: fill the column, or give --topic." in done.stderr
    assert "line 5: priority is 'high': it must be a whole number." in done.stderr
    assert "messages." not in done.stderr
    lines = tmp_path / "errors.jsonl"
    lines.write_text('{"body": "x", "in": "1h"}\n{"topic": "errors", "body": "x", "in": "1h", "tagg": "y"}\n')
    told = tidewheel("timer", "set", "--from", lines, "--http", broker.http).stderr
    assert "line 1: topic is missing: add the field, or give --topic." in told
    assert "line 2: tagg is not known here: write tag." in told


def test_an_unknown_column_is_refused_before_a_timer_is_set(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "tagg.csv"
    file.write_text("topic,body,in,tagg\ntagg,x,1h,\ntagg,x,1h,red\n")
    done = tidewheel("timer", "set", "--from", file, "--http", broker.http)
    assert done.returncode == 2
    assert "the unknown column 'tagg'. The columns are topic, body, " in done.stderr
    assert [one for one in timers(broker) if one["topic"] == "tagg"] == []


def test_the_summary_counts_one_timer_and_timers_that_were_replaced(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "count.jsonl"
    file.write_text('{"body": "dup", "in": "1h", "timer_key": "count"}\n')
    command = ("timer", "set", "--from", file, "--topic", "count", "--http", broker.http)
    assert tidewheel(*command).stdout == "1 timer was set, 0 rows were refused\n"
    again = tidewheel(*command)
    assert again.stdout == "1 timer was set (1 in place of a pending timer), 0 rows were refused\n"
    answer = json.loads(tidewheel(*command, "--json").stdout)
    assert answer == {
        "set": 1,
        "replaced": 1,
        "past": 0,
        "held": 0,
        "created_topics": [],
        "replaced_rows": [],
        "refused": [],
        "not_sent_after_line": None,
    }
    file.write_text('{"body": "dup"}\n')
    assert tidewheel(*command).stdout == "0 timers were set, 1 row was refused\n"


def test_rows_that_replace_a_timer_of_an_earlier_row_are_counted_with_their_lines(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "repeats.csv"
    file.write_text("topic,body,in,timer_key\nrepeats,a,1h,k\nrepeats,b,1h,k\n")
    command = ("timer", "set", "--from", file, "--http", broker.http)
    done = tidewheel(*command)
    assert done.stdout == "2 timers were set (1 in place of a pending timer), 0 rows were refused\n"
    assert "line 3: replaced the timer of line 2\n" in done.stderr
    assert "1 row replaced a timer of an earlier row: a timer key has one pending timer\n" in done.stderr
    rows = [
        "repeats,a,1h,k",
        "repeats,b,1h,l",
        "other,c,1h,k",
        "repeats,d,1h,",
        "repeats,e,1h,",
        "repeats,f,1h,l",
    ]
    rows += ["repeats,g,1h,k", "repeats,h,1h,l"]
    file.write_text("topic,body,in,timer_key\n" + "\n".join(rows) + "\n")
    said = json.loads(tidewheel(*command, "--json").stdout)
    assert (said["set"], said["replaced"]) == (8, 4), "the first row replaces a timer of the file before"
    assert said["replaced_rows"] == [
        {"line": 7, "earlier_line": 3},
        {"line": 8, "earlier_line": 2},
        {"line": 9, "earlier_line": 7},
    ]


def test_rows_with_one_idempotency_key_replace_one_timer(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "same.jsonl"
    row = {"topic": "same", "body": "a", "in": "1h", "timer_key": "k"}
    command = ("timer", "set", "--from", file, "--http", broker.http, "--json")

    def replaced(*rows: dict[str, str]) -> tuple[int, int]:
        file.write_text("".join(json.dumps(one) + "\n" for one in rows))
        said = json.loads(tidewheel(*command).stdout)
        return said["replaced"], len(said["replaced_rows"])

    assert replaced(row) == (0, 0)
    once, again = row | {"idempotency_key": "I"}, row | {"idempotency_key": "J"}
    assert replaced(once, once) == (1, 0)
    assert replaced(once, *[row] * 1_100, once) == (1_101, 1_100), "in two batches"
    assert replaced(again, row, again, row) == (3, 2)


def test_rows_of_a_file_say_which_topics_they_created(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.post("/api/messages", {"topic": "reminders", "body": "x"})
    file = tmp_path / "rows.csv"
    file.write_text("topic,body,in\nreminders,a,1h\nremindres,b,1h\nremindres,c,1h\nnotices,d,1h\n")
    done = tidewheel("timer", "set", "--from", file, "--http", broker.http)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("created")] == [
        "created topic remindres (4 queues); did you mean reminders? To delete remindres:  "
        "tidewheel topic delete remindres",
        "created topic notices (4 queues)",
    ]
    file.write_text("topic,body,in\nreminders,a,1h\nnew,b,1h\n")
    said = json.loads(tidewheel("timer", "set", "--from", file, "--json", "--http", broker.http).stdout)
    assert said["created_topics"] == [{"name": "new", "queue_count": 4, "similar_topic": None}]


def test_a_cancelled_timer_is_set_again_and_a_row_without_a_key_only_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "again.csv"
    file.write_text("body,in,timer_key\nx,1h,z1\ny,1h,\n")
    for _ in range(2):
        done = tidewheel("timer", "set", "--from", file, "--topic", "again", "--http", broker.http)
        assert "2 timers were set" in done.stdout, done.stderr
        found = [one for one in timers(broker) if one["topic"] == "again"]
        assert sorted(str(one["timer_key"]) for one in found) == ["", "z1"]
        tidewheel("timer", "cancel", "--topic", "again", "--timer-key", "z1", "--http", broker.http)


def test_json_lines_and_many_rows(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    rows = [
        json.dumps({"body_json": {"n": n}, "in_ms": 3_600_000 + n, "timer_key": f"m{n}"})
        for n in range(2_500)
    ]
    rows[1_234] = "{not json"
    rows[2_345] = json.dumps({"body": "x", "in": "1h", "nonsense": 1})
    file.write_text("\n".join(rows) + "\n\n")
    done = tidewheel("timer", "set", "--from", file, "--topic", "many", "--json", "--http", broker.http)
    answer = json.loads(done.stdout)
    assert answer["set"] == 2_498
    assert [(one["line"], one["code"]) for one in answer["refused"]] == [(1_235, "TW-130"), (2_346, "TW-130")]
    count = json.loads(tidewheel("timer", "ls", "--topic", "many", "--json", "--http", broker.http).stdout)
    assert count


def test_mistakes_end_with_a_sentence(broker: BrokerProcess, tmp_path: Path) -> None:
    missing = tidewheel("timer", "set", "--from", tmp_path / "none.csv", "--http", broker.http)
    assert "No such file" in missing.stderr
    assert missing.stdout == ""
    assert "--from FILE" in tidewheel("timer", "set", "--http", broker.http).stderr
    torn = tmp_path / "torn.csv"
    rows = "".join(f"x,1h,torn{number}\n" for number in range(3_000))
    torn.write_bytes(b"\xef\xbb\xbfbody,in,timer_key\n" + rows.encode() + b"\xff,1h,last\n")
    done = tidewheel("timer", "set", "--from", torn, "--topic", "torn", "--http", broker.http)
    assert re.match(r"2,\d+ timers were set, 0 rows", done.stdout), done.stdout
    assert re.search(r"the rows after line 2\d+ were not sent", done.stderr), done.stderr
    assert "TW-121" in done.stderr
    semicolons = tmp_path / "semicolons.csv"
    semicolons.write_text("body;in\nx;1h\n")
    refused = tidewheel("timer", "set", "--from", semicolons, "--topic", "t", "--http", broker.http)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "separated by semicolons: separate them by commas" in refused.stderr
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "Give rows in UTF-8" in tidewheel("timer", "set", "--from", binary, "--http", broker.http).stderr


def test_a_body_of_quotes_does_not_end_the_file(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "quotes.csv"
    quotes, too_large = '"' * (2 * limits.BODY_BYTES_MAX), "x" * (7 << 20)
    rows = "".join(f"x,1h,big{number}\n" for number in range(2_500))
    large = f'"{quotes}",1h,quotes\n{too_large},1h,large\n'
    file.write_text(f"body,in,timer_key\n{rows}{large}x,1h,last\n")
    done = tidewheel("timer", "set", "--from", file, "--topic", "big", "--http", broker.http)
    assert done.stdout == "2,502 timers were set, 1 row was refused\n", done.stderr
    assert done.returncode == 2
    assert "line 2503: The row has " in done.stderr
    found = tidewheel(
        "timer", "show", "--topic", "big", "--timer-key", "quotes", "--json", "--http", broker.http
    ).stdout
    assert json.loads(found)["message"]["body"] == '"' * limits.BODY_BYTES_MAX


def test_rows_that_are_due_already_are_counted(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "past.csv"
    file.write_text("topic,body,in,at\npast,x,0s,\npast,x,,2020-01-01T00:00Z\npast,x,1h,\nkept,x,0s,\n")
    tidewheel("topic", "create", "kept", "--http", broker.http)
    tidewheel("topic", "hold", "kept", "--yes", "--http", broker.http)
    command = ("timer", "set", "--from", file, "--http", broker.http)
    done = tidewheel(*command)
    assert done.stdout == "4 timers were set, 0 rows were refused\n", done.stderr
    assert "2 timers were due already: delivered at once" in done.stderr
    assert "1 timer was due already: HELD until:  tidewheel topic release kept" in done.stderr
    answer = json.loads(tidewheel(*command, "--json").stdout)
    assert (answer["past"], answer["held"]) == (3, 1)
