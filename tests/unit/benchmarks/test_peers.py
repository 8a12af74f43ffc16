"""The load that measures brokers beside each other, against one of ours; and the table of its figures."""

from __future__ import annotations

import asyncio
import copy
import os
from pathlib import Path
from typing import Any

import pytest
from hpack import Decoder

from tests.unit.benchmarks.in_process import InProcess, Play

ROW_SECONDS = 0.2


@pytest.mark.parametrize("kind", ["plain", "java"])
@pytest.mark.parametrize(
    ("row", "rpcs"),
    [
        ("send", {"SendMessage"}),
        ("send-tls", {"SendMessage"}),
        ("single", {"SendMessage"}),
        ("many", {"SendMessage"}),
        ("delayed", {"SendMessage"}),
        ("receive", {"SendMessage", "AckMessage"}),
        ("receive-each", {"SendMessage", "AckMessage"}),
        ("latency", {"SendMessage", "AckMessage"}),
        ("half", {"SendMessage", "EndTransaction"}),
    ],
)
def test_a_row_makes_its_calls_and_all_of_them_are_answered_well(
    peers: Any, play: Play, row: str, rpcs: set[str], kind: str
) -> None:
    async def scenario(server: InProcess) -> None:
        rows = peers("peers_rows")
        found = await rows.measure(rows.ROWS[row], server, kind, ROW_SECONDS, is_warming=True)
        assert found["server_us"] > 0
        assert 0 < found["p50_ms"] <= found["p99_ms"]
        # Of the streams, which may be receives, only refusals are observed.
        assert set(server.observed) == {(rpc, "OK") for rpc in rpcs}

    play(scenario)


def test_each_message_has_a_key_of_its_own_and_two_properties(peers: Any, play: Play) -> None:
    async def scenario(server: InProcess) -> None:
        calls, rows = peers("peers_calls"), peers("peers_rows")
        load, got = rows.Load(server, "plain", "t", "g"), []
        await rows.fill(load, 2 * rows.PER_CALL)
        for connection in await load.consumers(1):
            connection.start(load.receives(2 * rows.PER_CALL, is_each=False, note=got.append))
        await load.finished.wait()
        load.close()
        assert all(dict(one.user_properties) == calls.PROPERTIES for one in got)
        assert len(calls.PROPERTIES) == 2
        keys = [key for one in got for key in one.system_properties.keys]
        ids = {one.system_properties.message_id for one in got}
        assert len(got) == len(ids) == len(keys) == len(set(keys)) == 2 * rows.PER_CALL

    play(scenario)


def test_messages_that_are_due_at_one_instant_all_come_and_none_before_it(peers: Any, play: Play) -> None:
    async def scenario(server: InProcess) -> None:
        rows = peers("peers_rows")
        found = await rows.measure(rows.ROWS["crowd"], server, "plain", ROW_SECONDS, is_warming=True)
        assert 0 <= found["first_received_s"] <= found["last_received_s"]
        assert 0 <= found["last_stored_s"] <= found["last_received_s"]
        assert found["received_twice"] == 0

    play(scenario)


def test_one_refused_message_fails_the_row_with_the_server_s_words(peers: Any, play: Play) -> None:
    async def scenario(server: InProcess) -> None:
        calls, rows, http2 = peers("peers_calls"), peers("peers_rows"), peers("peers_http2")
        load = rows.Load(server, "plain", "no topic", "g")
        (connection,) = await load.producers(1)
        connection.start(load.so_many(calls.sending("no topic", 1), iter([1])))
        await rows.idle([connection])
        with pytest.raises(http2.LoadFailed, match=r"1 calls failed; the first: .*ILLEGAL_TOPIC: .*no topic"):
            load.failures.check()
        load.close()

    play(scenario)


def test_a_call_without_a_good_grpc_status_fails_even_among_others(peers: Any, play: Play) -> None:
    async def scenario(server: InProcess) -> None:
        calls, rows, http2 = peers("peers_calls"), peers("peers_rows"), peers("peers_http2")
        load = rows.Load(server, "plain", "t", "g")
        (connection,) = await load.producers(1)

        def worker() -> Any:
            yield [calls.sending("t", 1)(), (b"Nothing", b"\0\0\0\0\0"), calls.sending("t", 1)()]
            pytest.fail("a worker goes on only with replies")

        connection.start(worker())
        await rows.idle([connection])
        with pytest.raises(http2.LoadFailed, match="grpc-status 12"):
            load.failures.check()
        load.close()

    play(scenario)


def test_a_server_that_hangs_up_fails_the_row(peers: Any, play: Play) -> None:
    async def scenario(server: InProcess) -> None:
        rows, http2 = peers("peers_rows"), peers("peers_http2")
        load = rows.Load(server, "plain", "t", "g")
        await load.consumers(1)
        load.connections[0].start(load.receives(1, is_each=False))
        server.live.receivers.close()
        server.sessions.close()
        await server.port.shut_down(0.0)
        await load.finished.wait()
        with pytest.raises(http2.LoadFailed, match=r"goes away|hung up"):
            load.failures.check()
        load.close()

    play(scenario)


@pytest.mark.parametrize("kind", ["plain", "java"])
def test_blocks_say_the_same_with_a_table_and_without(peers: Any, kind: str) -> None:
    fields = peers("peers_fields")
    stable = fields.stable_fields(kind, "me", is_tls=False)
    rpcs = [b"SendMessage", b"AckMessage", b"SendMessage", b"SendMessage", b"AckMessage"] * 20
    writers = [
        fields.FieldWriter(stable, fields.changing_fields(kind), uses_table=uses) for uses in (True, False)
    ]
    with_table, ids = Decoder(), set()
    for rpc in rpcs:
        short, whole = (writer.block(rpc) for writer in writers)
        told = [dict(decoder.decode(block)) for decoder, block in ((with_table, short), (Decoder(), whole))]
        ids.update(one.pop("x-mq-request-id", "") for one in told)
        assert all(one.pop("grpc-timeout") for one in told)
        assert [one.pop("x-mq-date-time", "") != "" for one in told] == [kind == "java"] * 2
        assert told[0] == told[1]
        assert told[0][":path"] == f"/apache.rocketmq.v2.MessagingService/{rpc.decode()}"
        assert told[0]["x-mq-client-id"] == "me"
    assert len(short) < len(whole) / 3
    assert len(ids) == (2 * len(rpcs) if kind == "java" else 1)


def test_the_recorded_client_s_fields_are_all_there(peers: Any) -> None:
    fields = peers("peers_fields")
    stable = fields.stable_fields("java", "me", is_tls=True)
    writer = fields.FieldWriter(stable, fields.changing_fields("java"), uses_table=False)
    said = dict(Decoder().decode(writer.block(b"SendMessage"), raw=True))
    assert said.keys() == {b":path"} | dict(fields.recorded()).keys()
    assert (said[b"user-agent"], said[b":scheme"]) == (b"grpc-java-netty/1.50.0", b"https")


def rate(turn: int, per_second: float, server_us: float, busy: float = 0.1) -> dict[str, float]:
    return {
        "round": turn,
        "per_second": per_second,
        "server_us": server_us,
        "p50_ms": 4.0,
        "p99_ms": 9.0,
        "load_busy": busy,
    }


FOUND: dict[str, Any] = {
    "machine": {
        "date": "2026-11-23", "cores": 2, "processor": "a processor", "python": "3.11",
        "load_before": 0.1, "load_after": 1.0,
    },
    "options": {"rounds": 3, "java_rounds": 1, "seconds": 2.5},
    "servers": {"tidewheel": {"commit": "abc"}, "rocketmq": {"version": "5.5.0"}},
    "figures": [
        {
            "row": "send", "flush": "async", "headers": "java",
            "rounds": {
                "tidewheel": [rate(1, 10_000, 40), rate(2, 30_000, 50), rate(3, 20_000, 60)],
                "rocketmq": [rate(1, 10_000, 100), rate(3, 10_000, 100), rate(2, 10_000, 100)],
            },
        },
    ],
    "failures": [],
}  # fmt: skip


def test_a_cell_is_the_middle_and_a_ratio_is_that_of_one_round(peers: Any) -> None:
    made = peers("peers_table").table(FOUND, {"send": "send 1"})
    assert (
        "| send 1, async, Java's header fields | 20,000/s, 50 us, p50 4.0 ms | 10,000/s, 100 us, p50 4.0 ms"
        " | rate 2.00 (1.00-3.00); CPU 0.50 (0.40-0.60) |"
    ) in made
    assert "tidewheel abc and rocketmq 5.5.0; 2 cores (a processor)" in made
    assert "*" not in made


def test_rounds_that_only_one_has_are_in_no_ratio(peers: Any) -> None:
    found = copy.deepcopy(FOUND)
    del found["figures"][0]["rounds"]["rocketmq"][1:]
    assert "| rate 1.00; CPU 0.40 |" in peers("peers_table").table(found, {})


def test_a_row_of_another_setting_is_beside_the_one_of_the_default(peers: Any) -> None:
    found, titles = copy.deepcopy(FOUND), peers("peers_rows").ROWS
    made_first = ["half", "receive-each", "receive", "start", "receive-merged"]
    found["figures"] = [
        {"row": row, "flush": flush, "headers": kind, "rounds": {}}
        for flush in ("sync", "async")
        for row in made_first
        for kind in ("java", "plain")
    ]
    table = peers("peers_table").table(found, {name: name for name in titles})
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if "sync" in line]
    order = ["receive", "receive-merged", "receive-each", "half"]
    assert rows[:4] == [f"{row}, sync" for row in order]
    assert rows[4:8] == [f"{row}, sync, Java's header fields" for row in order]
    assert rows[8].startswith("start")
    assert rows[10] == "receive, async"


def test_memory_is_told_with_what_of_it_is_in_no_file(peers: Any) -> None:
    found = copy.deepcopy(FOUND)
    memory = {"resident_mb": 150, "anonymous_mb": 80, "end_resident_mb": 250, "end_anonymous_mb": 90}
    ours, theirs = {"round": 1, "seconds": 1.0} | memory, {"round": 1, "seconds": 9.0}
    theirs |= {name: 10 * value for name, value in memory.items()}
    rounds = {"tidewheel": [ours], "rocketmq": [theirs]}
    found["figures"] = [{"row": "start", "flush": "sync", "headers": "plain", "rounds": rounds}]
    made = peers("peers_table").table(found, {})
    assert "| 1.0 s; 150 MB (80 in no file); 250 MB (90 in no file) |" in made
    assert "| time 0.11; resident 0.10; in no file 0.10 |" in made


def test_every_row_that_receives_is_also_beside_a_rocketmq_that_merges_pops(peers: Any) -> None:
    rows = peers("peers_rows").ROWS
    merged = {name.removesuffix("-merged"): row for name, row in rows.items() if row.merges_pops}
    assert merged.keys() == {"receive", "receive-each", "crowd", "latency"}
    assert all(
        (row.run, row.message_type) == (rows[name].run, rows[name].message_type)
        for name, row in merged.items()
    )


def test_what_failed_and_where_the_load_was_the_limit_is_told(peers: Any) -> None:
    found = copy.deepcopy(FOUND)
    found["figures"][0]["rounds"] = {"tidewheel": [rate(1, 90_000, 10, busy=0.95)]}
    found["failures"] = [
        {"flush": "sync", "headers": "plain", "row": "half", "server": "rocketmq", "round": 2, "why": "no"}
    ]
    made = peers("peers_table").table(found, {})
    assert "| 90,000/s, 10 us, p50 4.0 ms * |  |  |" in made
    assert "it may have been the limit" in made
    assert "- half, sync, rocketmq, round 2: no" in made


def test_a_table_replaces_what_is_in_its_place_and_nothing_else(peers: Any, tmp_path: Path) -> None:
    pages, page = peers("peers_page"), tmp_path / "page.md"
    begins, ends = pages.marks("peers")
    others = "\n".join(pages.marks("others"))
    page.write_text(f"before\n{begins}\nold\n{ends}\nafter\n{others}\n")
    pages.written(page, "peers", "new")
    assert page.read_text() == f"before\n{begins}\nnew\n{ends}\nafter\n{others}\n"
    for without in ("no marks", begins, others):
        page.write_text(without)
        with pytest.raises(pages.BadPage, match="Put these two lines into it"):
            pages.written(page, "peers", "new")
        assert page.read_text() == without


def test_a_server_that_cannot_start_says_what_it_said_last(peers: Any, tmp_path: Path) -> None:
    servers = peers("peers_servers")

    async def start() -> None:
        (tmp_path / "store").write_text("a file where the folder of the store should be")
        await servers.Tidewheel(tmp_path, "sync").start()

    with pytest.raises(servers.CannotRun, match=r"did not start\. It said last:\s.*store"):
        asyncio.run(start())


def test_a_server_stands_still_goes_on_and_ends(peers: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        server = peers("peers_servers").Tidewheel(tmp_path, "async")
        await server.start()
        (process,) = server._processes
        state = Path(f"/proc/{process.pid}/stat")
        server.freeze()
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            await asyncio.sleep(0)
        await server.thaw()
        assert state.read_text().rpartition(")")[2].split()[0] != "T"
        assert server.processor_seconds() > 0
        assert os.sysconf("SC_PAGE_SIZE") < server.anonymous_bytes() < server.resident_bytes()
        server.freeze()
        server.stop()
        assert process.returncode == 0

    asyncio.run(scenario())
