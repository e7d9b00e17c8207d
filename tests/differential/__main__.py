"""Our fit and a HAMi scheduler asked the same questions in random worlds; a disagreement is shrunk and printed.

    python -m tests.differential [--hami stand-in|ground|PATH] [--worlds N] [--seed S] [--kind KIND] [--configs K]

--hami   stand-in: the test ground's reading of HAMi, in this process. ground: the same as a process in a real control
         plane. PATH: HAMi's own scheduler in a real control plane.
--kind   mixed, or one of tests.differential.backends.BACKENDS (real scheduler only).
--configs  control planes started one after another, the second and later ones with random flags and defaults.

A verdict is one comparison: what admission makes of a pod, one pod on one node (fits or not, reason text, devices,
annotations), or the node chosen of all. Exit 1 when one differs. --out FILE keeps the shrunk records, --keep FILE.gz
all of them with the answers, for `tests.replay_traces`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Protocol

from defragd.core.fit_families import UNPREDICTABLE
from tests.differential.real import Running, settings
from tests.differential.shrink import shrink
from tests.differential.standin import StandIn
from tests.replay_traces import Tally, World

Raw = dict[str, Any]


class Side(Protocol):
    """Who answers."""

    def world(self, random: Random) -> Raw: ...

    def answer(self, record: Raw) -> Raw: ...


class Judge(World):
    """Our answers; forecasts that we decline are counted apart: we then refuse what HAMi may accept."""

    def compare(self, fit: Any, answer: Any, snapshot: Any, pod: Any, name: str) -> str:
        if UNPREDICTABLE in fit.text:
            self.tally.note(self.kind, "declined", True)
            return ""
        return super().compare(fit, answer, snapshot, pod, name)

    def compare_choice(self, choice: Any, seen: Any, snapshot: Any, pod: Any) -> str:
        if any(UNPREDICTABLE in fit.text for fit in choice.fits.values()):
            self.tally.note(self.kind, "declined", True)
            return ""
        return super().compare_choice(choice, seen, snapshot, pod)


def judge(answered: Raw) -> Tally:
    tally = Tally()
    Judge(answered, tally).run()
    return tally


def compare(side: Side, record: Raw, *, patience: int = 1) -> tuple[Tally, Raw]:
    """Ask and compare; ``patience``: how often to ask again, since a running HAMi's caches may lag behind."""
    for attempt in range(patience):
        if attempt:
            time.sleep(0.3 * attempt)
        answered = side.answer(record)
        tally = judge(answered)
        if not tally.deviations:
            break
    return tally, answered


def run(
    side: Side,
    seeds: range,
    *,
    patience: int = 1,
    out: Path | None = None,
    keep: Path | None = None,
    show: bool = True,
    tries: int = 400,
) -> Tally:
    """All worlds of ``seeds``; every disagreement is shrunk by ``tries`` questions and, with ``show``, printed."""
    total = Tally()
    for seed in seeds:
        record = side.world(Random(seed))
        tally, given = compare(side, record, patience=patience)
        if keep:
            with gzip.open(keep, "at", encoding="utf-8") as file:
                file.write(json.dumps(given, separators=(",", ":")) + "\n")
        for kind, counts in tally.counts.items():
            total.counts[kind].update(counts)
        total.deviations += [f"seed {seed}: {text}" for text in tally.deviations]
        if tally.deviations and show:
            small, text = shrink(
                record,
                lambda r: next(iter(compare(side, r, patience=min(patience, 2))[0].deviations), ""),
                tries=tries,
            )
            answered = compare(side, small)[1]
            print(f"seed {seed}: {text or tally.deviations[0]}\n  {json.dumps(answered)}", flush=True)
            if out:
                with out.open("a") as file:
                    file.write(json.dumps(answered) + "\n")
    return total


def summary(total: Tally) -> list[str]:
    """One line per kind."""
    lines = []
    for kind, counts in sorted(total.counts.items()):
        cells = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        lines.append(f"{kind:24} {cells}")
    return lines


def verdicts(total: Tally) -> Counter[str]:
    """Equal, different and declined verdicts of all kinds."""
    found: Counter[str] = Counter()
    for counts in total.counts.values():
        for what, count in counts.items():
            declined = what.startswith("declined")
            found["declined" if declined else "equal" if what.endswith("right") else "different"] += count
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hami", default="stand-in")
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", default="")
    parser.add_argument("--configs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--tries", type=int, default=None, help="questions spent on shrinking one disagreement")
    options = parser.parse_args(arguments)
    total, started = Tally(), time.monotonic()
    share = -(-options.worlds // options.configs)
    for number in range(options.configs):
        first = options.seed + number * share
        seeds = range(first, min(first + share, options.seed + options.worlds))
        with ExitStack() as stack:
            side: Side = StandIn()
            if options.hami != "stand-in":
                path = "" if options.hami == "ground" else options.hami
                config = settings(Random(options.seed + number) if number else None)
                side = stack.enter_context(Running(path, kind=options.kind, config=config))
            patience, tries = (1, 400) if options.hami == "stand-in" else (4, 30)
            tries = tries if options.tries is None else options.tries
            part = run(side, seeds, patience=patience, out=options.out, keep=options.keep, tries=tries)
        for kind, counts in part.counts.items():
            total.counts[kind].update(counts)
        total.deviations += part.deviations
    print("\n".join(summary(total)))
    found = verdicts(total)
    print(
        f"{options.hami}: {found['equal']} verdicts equal, {found['different']} different, "
        f"{found['declined']} declined, {options.worlds} worlds from seed {options.seed}, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if total.deviations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
