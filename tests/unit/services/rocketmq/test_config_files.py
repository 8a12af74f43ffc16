"""RocketMQ's config files, read leniently and written so that RocketMQ reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commitlog.records.message import MessageType
from services.rocketmq import config_files
from services.rocketmq.config_files import TimerCheck, TopicConfig, parse_json, read_config
from services.store.read_only.reading import StoreFiles


def put(root: Path, name: str, content: str | bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"t@g":{0:12,1:-1}}', {"t@g": {"0": 12, "1": -1}}),
        ('{\n\t12 : 3,\n\t"a" : [1,{2:"x"}]}', {"12": 3, "a": [1, {"2": "x"}]}),
        (r'{"a{1:2,\"3:4":"{5:6}"}', {'a{1:2,"3:4': "{5:6}"}),
        ('{"0":1}', {"0": 1}),
    ],
)
def test_integer_keys_may_be_bare_and_strings_stay_as_they_are(text: str, value: object) -> None:
    assert parse_json(text) == value


def test_a_torn_file_gives_way_to_its_backup_and_is_told(tmp_path: Path) -> None:
    put(tmp_path, "config/consumerOffset.json", '{"offsetTable":{"t@g":{0:')
    put(tmp_path, "config/consumerOffset.json.bak", '{"offsetTable":{"t@g":{0:7}}}')
    put(tmp_path, "config/delayOffset.json", '{"offsetTable":{3:9}}')
    config = read_config(StoreFiles(tmp_path))
    assert config.group_offsets == {("t", "g"): {0: 7}}
    assert config.delay_offsets == {3: 9}
    assert config.notes == ["config/consumerOffset.json cannot be read as RocketMQ's JSON."]


def test_missing_files_say_nothing(tmp_path: Path) -> None:
    config = read_config(StoreFiles(tmp_path))
    assert (config.topics, config.group_offsets, config.delay_offsets) == ({}, {}, {})
    assert (config.timer_check, config.half_offset(), config.notes) == (None, 0, [])


def test_a_topic_without_a_type_takes_all(tmp_path: Path) -> None:
    topics = {
        "old": {"readQueueNums": 3, "writeQueueNums": 8},
        "typed": {"readQueueNums": 1, "writeQueueNums": 1, "attributes": {"message.type": "FIFO"}},
    }
    put(tmp_path, "config/topics.json", json.dumps({"topicConfigTable": topics}))
    assert read_config(StoreFiles(tmp_path)).topics == {
        "old": TopicConfig("old", 8, MessageType.MIXED),
        "typed": TopicConfig("typed", 1, MessageType.FIFO),
    }


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    topics = {"a": TopicConfig("a", 2, MessageType.MIXED), "b": TopicConfig("b", 1, MessageType.DELAY)}
    offsets = {("a", "g"): {0: 5, 1: 6}, ("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"): {0: 4}}
    put(tmp_path, config_files.TOPICS, config_files.topics_json(topics, 1))
    put(tmp_path, config_files.CONSUMER_OFFSETS, config_files.consumer_offsets_json(offsets, 1))
    put(tmp_path, config_files.DELAY_OFFSETS, config_files.delay_offsets_json({18: 2}, 1))
    check = config_files.timer_check_bytes(TimerCheck(1000, 7), 1)
    put(tmp_path, config_files.TIMER_CHECK, check)
    config = read_config(StoreFiles(tmp_path))
    assert (config.topics, config.group_offsets, config.delay_offsets) == (topics, offsets, {18: 2})
    assert (config.timer_check, config.half_offset()) == (TimerCheck(1000, 7), 4)
    assert len(check) == 4096
    assert check[:56].hex() == "".join(f"{field:016x}" for field in (1000, 0, 7, 7, 0, 1, 0))
