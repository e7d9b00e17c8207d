"""The defragd.io/* annotations: values, places, and that what cannot be read protects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defragd.core import annotations as ann
from defragd.core.duration import format_duration, parse_duration
from defragd.core.model import Node, Owner, Pod, Workload
from defragd.core.snapshot import Snapshot

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def world(pod=(), owner=(), top=(), namespace=(), node=()):
    """One pod of a Deployment with annotations in each of the five places."""
    p = Pod("team", "a", "u1", annotations=dict(pod), owner=Owner("ReplicaSet", "a-1", "rs"), node="n1")
    return Snapshot(
        nodes={"n1": Node("n1", annotations=dict(node))},
        pods={p.key: p},
        workloads={
            "rs": Workload(
                "ReplicaSet", "team", "a-1", "rs", 2, annotations=dict(owner), top=Owner("Deployment", "a", "d")
            ),
            "d": Workload("Deployment", "team", "a", "d", 2, annotations=dict(top)),
        },
        namespace_annotations={"team": dict(namespace)},
    ), p


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true", True),
        ("True ", True),
        ("false", False),
        ("2026-12-24T00:00:00Z", datetime(2026, 12, 24, tzinfo=UTC)),
        ("2026-12-24T00:00:00+02:00", datetime(2026, 12, 23, 22, tzinfo=UTC)),
    ],
)
def test_do_not_move_values(value, expected):
    assert ann.parse_do_not_move(value) == expected


@pytest.mark.parametrize("value", ["", "yes", "1", "2026-12-24", "2026-12-24T00:00:00", "soon", "2026-13-01T00:00:00Z"])
def test_do_not_move_garbage_is_malformed(value):
    with pytest.raises(ann.MalformedAnnotation, match="do-not-move"):
        ann.parse_do_not_move(value)


@pytest.mark.parametrize(
    ("text", "when", "inside"),
    [
        ("01:00-05:00 Europe/Berlin", "2026-12-01T00:00:00Z", True),
        ("01:00-05:00 Europe/Berlin", "2026-12-01T03:59:00Z", True),
        ("01:00-05:00 Europe/Berlin", "2026-12-01T04:00:00Z", False),
        ("01:00-05:00 Europe/Berlin", "2026-07-01T23:00:00Z", True),
        ("01:00-05:00", "2026-07-01T23:00:00Z", False),
        ("22:00-04:00 UTC", "2026-12-01T23:00:00Z", True),
        ("22:00-04:00 UTC", "2026-12-01T03:59:59Z", True),
        ("22:00-04:00 UTC", "2026-12-01T04:00:00Z", False),
        ("00:00-24:00", "2026-12-01T23:59:59Z", True),
        ("01:00-02:00,13:00-14:00 UTC", "2026-12-01T13:30:00Z", True),
    ],
)
def test_hours(text, when, inside):
    assert ann.parse_hours(text).contains(datetime.fromisoformat(when)) is inside


@pytest.mark.parametrize(
    "text",
    [
        "",
        "always",
        "1-5",
        "01:00-05:00 Mars/Olympus",
        "25:00-26:00",
        "01:60-02:00",
        "01:00-01:00",
        "01:00 - 05:00 UTC",
        "01:00-05:00 Europe",
        "01:00-05:00 ../../etc/passwd",
        "٠١:٠٠-٠٥:٠٠",
    ],
)
def test_hours_garbage_is_malformed(text):
    with pytest.raises(ann.MalformedAnnotation, match="allowed-hours"):
        ann.parse_hours(text)


@pytest.mark.parametrize(
    ("text", "now", "opens"),
    [
        ("01:00-05:00 UTC", "2026-12-01T20:00:00Z", "2026-12-02T01:00:00Z"),
        ("01:00-05:00 UTC", "2026-12-01T02:00:00Z", "2026-12-01T02:00:00Z"),
        # 28 March 2027: Berlin has no 02:30; the span opens when the clock has jumped to 03:00.
        ("02:30-04:00 Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T01:00:00Z"),
        # 25 October 2026: 02:30 comes twice; the first one counts.
        ("02:30-04:00 Europe/Berlin", "2026-10-24T20:00:00Z", "2026-10-25T00:30:00Z"),
    ],
)
def test_next_open(text, now, opens):
    assert ann.parse_hours(text).next_open(datetime.fromisoformat(now)) == datetime.fromisoformat(opens)


@settings(deadline=None)
@given(
    st.integers(0, 1439),
    st.integers(1, 1440),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),
)
def test_next_open_is_open_and_in_the_future(begin, end, zone, when):
    if begin == end:
        return
    text = f"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02} {zone}"
    now = when.replace(tzinfo=UTC)
    hours = ann.parse_hours(text)
    try:
        opens = hours.next_open(now)
    except ValueError:
        pytest.fail(f"{text} never opens after {now}")
    assert opens >= now and hours.contains(opens)


def test_first_valid_in_the_half_hour_gap_of_lord_howe():
    zone = ZoneInfo("Australia/Lord_Howe")
    found = ann.first_valid(datetime(2026, 10, 4, 2, 15), zone)
    assert found == datetime(2026, 10, 3, 15, 30, tzinfo=UTC)
    assert found.astimezone(zone).strftime("%H:%M") == "02:30"


@pytest.mark.parametrize("place", ["pod", "owner", "top", "namespace", "node"])
def test_every_place_opts_out(place):
    snapshot, pod = world(**{place: {ann.DO_NOT_MOVE: "true"}})
    said = ann.wishes(snapshot, pod, NOW)
    assert said.do_not_move and said.until is None
    names = {
        "pod": "team/a",
        "owner": "ReplicaSet/a-1",
        "top": "Deployment/a",
        "namespace": "Namespace/team",
        "node": "Node/n1",
    }
    assert said.opted_out_by == names[place]


def test_nearest_place_wins_but_a_node_speaks_for_itself():
    snapshot, pod = world(pod={ann.DO_NOT_MOVE: "false"}, namespace={ann.DO_NOT_MOVE: "true"})
    assert not ann.wishes(snapshot, pod, NOW).do_not_move
    snapshot, pod = world(pod={ann.DO_NOT_MOVE: "false"}, node={ann.DO_NOT_MOVE: "true"})
    assert ann.wishes(snapshot, pod, NOW).do_not_move


def test_an_ended_opt_out_counts_as_not_said():
    snapshot, pod = world(pod={ann.DO_NOT_MOVE: "2026-11-01T00:00:00Z"}, namespace={ann.DO_NOT_MOVE: "true"})
    assert ann.wishes(snapshot, pod, NOW).opted_out_by == "Namespace/team"
    snapshot, pod = world(pod={ann.DO_NOT_MOVE: "2026-11-01T00:00:00Z"})
    assert not ann.wishes(snapshot, pod, NOW).do_not_move


@pytest.mark.parametrize("place", ["pod", "owner", "top", "namespace", "node"])
def test_what_cannot_be_read_is_reported_with_its_place(place):
    snapshot, pod = world(**{place: {ann.DO_NOT_MOVE: "jawohl"}})
    said = ann.wishes(snapshot, pod, NOW)
    assert len(said.broken) == 1 and "jawohl" in said.broken[0].detail


def test_a_misspelt_key_is_reported_and_a_foreign_one_is_not():
    broken = ann.unread(
        "x", {"defragd.io/do-not-mvoe": "true", "defragd.io/elsewhere": "x", "other.io/do-not-move": "?"}
    )
    assert [b.detail for b in broken] == ["defragd.io/do-not-mvoe is unknown, did you mean defragd.io/do-not-move?"]


def test_start_limit_is_read_from_the_nearest_place():
    snapshot, pod = world(top={ann.START_LIMIT: "30m"}, namespace={ann.START_LIMIT: "1h"})
    assert ann.start_limit(snapshot, pod, NOW) == timedelta(minutes=30)


@pytest.mark.parametrize("value", ["", "0", "-5m", "30", "25h", "1y", "five"])
def test_start_limit_garbage(value):
    with pytest.raises(ann.MalformedAnnotation, match="start-limit"):
        ann.parse_start_limit(value)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_no_text_whatsoever_makes_reading_fail(text):
    notes = dict.fromkeys(ann.KEYS, text)
    snapshot, pod = world(pod=notes, node=notes, namespace=notes)
    said = ann.wishes(snapshot, pod, NOW)
    assert said.broken  # no text is right for all four


@settings(deadline=None)
@given(st.integers(0, 10**8))
def test_durations_survive_writing_and_reading(seconds):
    value = timedelta(seconds=seconds)
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize("text", ["", "30", "5 m", "m", "-1s", "1e3s", "1h-5m", "9999999w", "1" * 63 + "s", "٥m"])
def test_durations_that_are_none(text):
    with pytest.raises(ValueError):
        parse_duration(text)
