"""Cron: what is read, what is refused, the daylight-saving rule on real dates and against a scan of every minute."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defragd.policy.cron import MACROS, parse_cron
from tests.support.effort import examples

UTC_ZONE = ZoneInfo("UTC")


def starts(text, zone, after, count):
    found = parse_cron(text, ZoneInfo(zone)).after(datetime.fromisoformat(after))
    return [when.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M%z") for when in itertools.islice(found, count)]


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        # Berlin, 25 October 2026: 02:30 comes twice, the first one counts.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        # Berlin, 28 March 2027: there is no 02:30; the first valid instant is 03:00.
        ("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00Z", ["03-28 03:00+0200", "03-29 02:30+0200"]),
        # Several skipped starts of one gap are one start.
        ("*/20 2 * * *", "Europe/Berlin", "2027-03-27T12:00Z", ["03-28 03:00+0200", "03-29 02:00+0200"]),
        # A skipped start that falls together with a regular one is one start.
        (
            "30 2,3 * * *",
            "Europe/Berlin",
            "2027-03-27T12:00Z",
            ["03-28 03:00+0200", "03-28 03:30+0200", "03-29 02:30+0200"],
        ),
        ("0 2,3 * * *", "Europe/Berlin", "2027-03-27T12:00Z", ["03-28 03:00+0200", "03-29 02:00+0200"]),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00Z",
            ["10-25 02:00+0200", "10-25 02:30+0200", "10-26 02:00+0100"],
        ),
        # The hour is a wildcard: by elapsed time, twice in the repeated hour, never in the skipped one.
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-10-25T00:00Z",
            ["10-25 02:30+0200", "10-25 02:30+0100", "10-25 03:30+0100"],
        ),
        ("30 * * * *", "Europe/Berlin", "2027-03-28T00:00Z", ["03-28 01:30+0100", "03-28 03:30+0200"]),
        # Sydney: forward on 4 October 2026, back on 4 April 2027.
        ("30 2 * * *", "Australia/Sydney", "2026-10-03T12:00Z", ["10-04 03:00+1100", "10-05 02:30+1100"]),
        ("30 2 * * *", "Australia/Sydney", "2027-04-03T12:00Z", ["04-04 02:30+1100", "04-05 02:30+1000"]),
        # Lord Howe changes by half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", ["10-04 02:30+1100", "10-05 02:15+1100"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-03T12:00Z", ["04-04 01:45+1100", "04-05 01:45+1030"]),
        # Santiago skips midnight itself.
        ("@daily", "America/Santiago", "2026-09-05T12:00Z", ["09-06 01:00-0300", "09-07 00:00-0300"]),
        # 0 and 7 are Sunday; names, ranges over Sunday.
        ("0 2 * * 0", "UTC", "2026-12-01T00:00Z", ["12-06 02:00+0000", "12-13 02:00+0000"]),
        ("0 2 * * 7", "UTC", "2026-12-01T00:00Z", ["12-06 02:00+0000", "12-13 02:00+0000"]),
        ("0 2 * * 1", "UTC", "2026-12-01T00:00Z", ["12-07 02:00+0000"]),
        (
            "0 2 * * fri-sun",
            "UTC",
            "2026-12-01T00:00Z",
            ["12-04 02:00+0000", "12-05 02:00+0000", "12-06 02:00+0000", "12-11 02:00+0000"],
        ),
        ("0 0 1 jan,jul *", "UTC", "2026-12-01T00:00Z", ["01-01 00:00+0000", "07-01 00:00+0000"]),
        # Day and weekday both restricted: either is enough, as in cron.
        ("0 0 13 * FRI", "UTC", "2026-12-01T00:00Z", ["12-04 00:00+0000", "12-11 00:00+0000", "12-13 00:00+0000"]),
        ("0 0 29 2 *", "UTC", "2026-12-01T00:00Z", ["02-29 00:00+0000"]),
    ],
)
def test_starts(text, zone, after, expected):
    assert starts(text, zone, after, len(expected)) == expected


def test_an_hour_field_that_is_a_wildcard_with_step_counts_as_one():
    assert starts("0 */2 * * *", "Europe/Berlin", "2026-10-24T23:00Z", 2) == ["10-25 02:00+0200", "10-25 02:00+0100"]


@pytest.mark.parametrize("macro", sorted(MACROS))
def test_macros_fire(macro):
    assert parse_cron(macro, UTC_ZONE).next(datetime(2026, 12, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 2,4,6,9,11 *", "never fires"),
        ("0 0 30-31 feb *", "never fires"),
        ("* * * *", "4 fields instead of 5"),
        ("0 0 2 * * *", "6 fields instead of 5"),
        ("", "0 fields"),
        ("60 * * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 0 0 * *", "day-of-month"),
        ("0 0 * 13 *", "month"),
        ("0 0 * * 8", "day-of-week"),
        ("0 0 * * MONDAY", "day-of-week"),
        ("*/0 * * * *", "minute"),
        ("5-3 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("٣ * * * *", "cron"),
        ("@reboot", "@daily"),
        ("every night", "2 fields"),
    ],
)
def test_refused(text, says):
    with pytest.raises(ValueError, match=says):
        parse_cron(text, UTC_ZONE)


@settings(deadline=None)
@given(st.text(alphabet="0123456789*,-/LW#@ MONFRIJAN?abc.", max_size=30))
def test_any_text_is_read_or_refused_with_a_sentence(text):
    try:
        cron = parse_cron(text, UTC_ZONE)
    except ValueError as error:
        said = str(error)
    else:
        said = f"fires at {cron.next(datetime(2026, 12, 1, tzinfo=UTC)).isoformat()}"
    assert 10 < len(said) < 300


FIELD_MINUTE = st.sampled_from(["0", "30", "*/15", "7,37", "10-20", "59"])
FIELD_HOUR = st.sampled_from(["*", "*/3", "0", "1", "2", "3", "1-3", "2,23", "0-23"])
FIELD_DOW = st.sampled_from(["*", "SUN", "0-6", "1,2"])
CHANGES = [
    ("Europe/Berlin", "2026-10-24T20:00Z"),
    ("Europe/Berlin", "2027-03-27T20:00Z"),
    ("Australia/Sydney", "2026-10-03T10:00Z"),
    ("Australia/Sydney", "2027-04-03T10:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T10:00Z"),
    ("Australia/Lord_Howe", "2027-04-03T10:00Z"),
    ("America/Santiago", "2026-09-05T23:00Z"),
    ("America/St_Johns", "2026-11-01T00:00Z"),
    ("Asia/Shanghai", "2026-12-01T00:00Z"),
]


def expand(field, low, high):
    out = set()
    for part in field.split(","):
        body, _, step = part.partition("/")
        if body == "*":
            span = range(low, high + 1)
        elif "-" in body:
            span = range(int(body.split("-")[0]), int(body.split("-")[1]) + 1)
        else:
            span = range(int(body), int(body) + 1)
        out |= set(span[:: int(step or 1)])
    return out


def scan(minute, hour, dow, zone, begin, hours):
    """Starts by looking at every minute of real time, written from the rule and not from the code."""
    zone = ZoneInfo(zone)
    minutes, hours_set = expand(minute, 0, 59), expand(hour, 0, 23)
    days = {"*": set(range(7)), "SUN": {0}, "0-6": set(range(7)), "1,2": {1, 2}}[dow]

    def hit(naive):
        return naive.minute in minutes and naive.hour in hours_set and (naive.weekday() + 1) % 7 in days

    out = []
    for step in range(1, hours * 60):
        when = begin + timedelta(minutes=step)
        local = when.astimezone(zone)
        naive = local.replace(tzinfo=None, fold=0)
        before = (when - timedelta(minutes=1)).astimezone(zone).replace(tzinfo=None, fold=0)
        skipped = [before + timedelta(minutes=k) for k in range(1, int((naive - before).total_seconds() // 60))]
        if hour.startswith("*"):
            if hit(naive):
                out.append(when)
        elif (hit(naive) and not local.fold) or any(hit(gone) for gone in skipped):
            out.append(when)
    return out


@settings(max_examples=examples(60), deadline=None)
@given(FIELD_MINUTE, FIELD_HOUR, FIELD_DOW, st.sampled_from(CHANGES))
def test_agrees_with_a_scan_of_every_minute(minute, hour, dow, change):
    zone, begin = change[0], datetime.fromisoformat(change[1])
    end = begin + timedelta(hours=20)
    cron = parse_cron(f"{minute} {hour} * * {dow}", ZoneInfo(zone))
    found = list(itertools.takewhile(lambda when: when < end, cron.after(begin)))
    assert found == scan(minute, hour, dow, zone, begin, 20)


@settings(max_examples=examples(60), deadline=None)
@given(FIELD_MINUTE, FIELD_HOUR, st.sampled_from(CHANGES), st.integers(0, 1200), st.integers(1, 3000))
def test_last_is_the_last_of_after(minute, hour, change, offset, span):
    zone, begin = change[0], datetime.fromisoformat(change[1])
    cron = parse_cron(f"{minute} {hour} * * *", ZoneInfo(zone))
    until, within = begin + timedelta(minutes=offset), timedelta(minutes=span)
    inside = list(itertools.takewhile(lambda when: when <= until, cron.after(until - within)))
    assert cron.last(until, within) == (inside[-1] if inside else None)
