"""Register and allocation annotations, the lock and MIG lists: what HAMi writes is read, anything else is one error."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from defragd.errors import CodecError
from defragd.hami.codec import (
    Entry,
    go_bool,
    read_lock,
    read_mig,
    read_pair_scores,
    read_register,
    read_slots,
    split_mig_uuid,
    write_mig,
    write_slots,
)

KEY = "hami.io/node-nvidia-register"


def test_json_register_with_defaults() -> None:
    text = (
        '[{"id":"GPU-aa","count":10,"devmem":40960,"devcore":100,"type":"NVIDIA A100","mode":"hami-core",'
        '"health":true},'
        '{"id":"GPU-bb","index":1,"count":10,"devmem":40960,"devcore":100,"type":"NVIDIA A100","numa":1}]'
    )
    first, second = read_register(KEY, text)
    assert (first.uuid, first.index, first.numa, first.healthy, first.mode) == ("GPU-aa", 0, 0, True, "hami-core")
    assert (second.index, second.numa, second.healthy, second.mode) == (1, 1, False, "")


def test_json_register_with_mig_and_extras() -> None:
    text = json.dumps(
        [
            {
                "id": "GPU-aa",
                "mode": "mig",
                "future": {"x": 1},
                "custominfo": {"NetworkID": 3},
                "migProfiles": [
                    {
                        "name": "1g.10gb",
                        "memoryMB": 9856,
                        "core": 14,
                        "sliceCount": 1,
                        "placements": [{"start": 0, "size": 1}, {"size": 1, "start": 1}],
                    }
                ],
            }
        ]
    )
    (device,) = read_register(KEY, text)
    assert device.mig_profiles[0].placements == ((0, 1), (1, 1))
    assert device.custom == {"NetworkID": 3}


def test_text_register_seven_and_nine_fields() -> None:
    text = "DCU-0,4,32768,60,DCU-Z100L,0,true,2,hami-core:DCU-1,4,32768,60,DCU-Z100L,1,false:"
    first, second = read_register(KEY, text)
    assert (first.uuid, first.slots, first.memory_mib, first.cores, first.index) == ("DCU-0", 4, 32768, 60, 2)
    assert (second.healthy, second.mode, second.index, second.numa) == (False, "hami-core", 0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[{", "no JSON"),
        ('{"id":1}', "array"),
        ('[{"id":1}]', "id is no str"),
        ('[{"count":"10"}]', "count is no int"),
        ('[{"devmem":3000000000}]', "devmem is no int"),
        ("[1]", "no object"),
        ("DCU-0,1,2", "no device separator"),
        ("DCU-0,1,2:", "3 fields"),
        ("DCU-0,x,2,3,t,0,true:", "count is no 32-bit number"),
        ("DCU-0,1,2,3,t,0,maybe:", "boolean"),
        ("[" * 100000, "no JSON"),
    ],
)
def test_broken_register_says_where(text, says) -> None:
    with pytest.raises(CodecError, match=says) as info:
        read_register(KEY, text)
    assert KEY in str(info.value)
    assert len(str(info.value)) < 300


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("GPU-aa,NVIDIA,4096,30:;", [["GPU-aa"]]),
        (";GPU-aa,NVIDIA,4096,30:;GPU-bb,NVIDIA,8192,0:GPU-cc,NVIDIA,8192,0:;", [[], ["GPU-aa"], ["GPU-bb", "GPU-cc"]]),
        (",,0,0:;GPU-aa,NVIDIA,1,1:;", [[], ["GPU-aa"]]),
        ("", []),
        (";", [[]]),
        ("noise;GPU-aa,NVIDIA,1,1:;", [[], ["GPU-aa"]]),
        ("GPU-aa,NVIDIA,1,1,extra:;", [["GPU-aa"]]),
    ],
)
def test_slots(text, slots) -> None:
    assert [[e.uuid for e in slot] for slot in read_slots("k", text)] == slots


@pytest.mark.parametrize(
    "text", ["a,b:;", "a,b,c,1:;", "a,NVIDIA,1,9999999999:;", "a,NVIDIA, 1,1:;", "a,NVIDIA,1_0,1:;"]
)
def test_undecodable_slots(text) -> None:
    with pytest.raises(CodecError, match="annotation k at slot 0"):
        read_slots("k", text)


def test_slots_are_written_packed_or_not() -> None:
    slots = [[], [Entry("a", "NVIDIA", 1, 2)], [Entry("b", "NVIDIA", 3, 4), Entry("c", "NVIDIA", 5, 6)]]
    assert write_slots(slots) == "a,NVIDIA,1,2:;b,NVIDIA,3,4:c,NVIDIA,5,6:;"
    assert write_slots(slots, packed=False) == ";a,NVIDIA,1,2:;b,NVIDIA,3,4:c,NVIDIA,5,6:;"
    assert [list(s) for s in read_slots("k", write_slots(slots, packed=False))] == slots


def test_mig_suffix() -> None:
    assert split_mig_uuid("GPU-aa[1-0]") == ("GPU-aa", "1-0")
    assert split_mig_uuid("GPU-aa") == ("GPU-aa", "")


def test_mig_list_round_trip_and_refusals() -> None:
    text = (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-aa","profile":"1g.10gb","placement":{"start":6,"size":1}}]'
    )
    assert write_mig(read_mig(text)) == text
    item = json.loads(text)[0]
    for broken in (
        [item, item],
        [{**item, "gpuUUID": ""}],
        [{**item, "placement": {"start": 6}}],
        [{**item, "migUUID": "m"}],
        {},
        [3],
    ):
        with pytest.raises(CodecError):
            read_mig(json.dumps(broken))
    read_mig(json.dumps([{**item, "migUUID": "m", "gpuInstanceID": 1, "computeInstanceID": 0}]))


def test_locks() -> None:
    lock = read_lock("2026-05-01T10:00:00Z,ns,pod-1")
    assert lock is not None
    assert (lock.holder, lock.since) == ("ns/pod-1", datetime(2026, 5, 1, 10, tzinfo=UTC))
    old = read_lock("2026-05-01T12:00:00+02:00")
    assert old is not None
    assert (old.holder, old.since) == ("", datetime(2026, 5, 1, 10, tzinfo=UTC))
    for text in ("whatever", "2026-05-01T10:00:00Z,ns", "x,ns,pod", "2026-05-01,ns,pod"):
        bad = read_lock(text)
        assert bad is not None
        assert bad.since is None
    assert read_lock(None) is None
    assert read_lock("") is None


def test_pair_scores() -> None:
    assert read_pair_scores('[{"uuid":"a","score":{"b":100}}]') == {"a": {"b": 100}}
    assert read_pair_scores("null") == {}
    with pytest.raises(CodecError):
        read_pair_scores('[{"uuid":"a","score":{"b":"x"}}]')


def test_go_booleans() -> None:
    assert [go_bool(t) for t in ("1", "T", "True", "0", "false", "yes", "")] == [
        True,
        True,
        True,
        False,
        False,
        None,
        None,
    ]
