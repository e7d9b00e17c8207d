"""Policy files to `LoadedPolicy`: every error of every file with its place, and whatever is right all the same."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from defragd.errors import PolicyError
from defragd.hami.vendors import VENDORS
from defragd.policy import registry
from defragd.policy.caps import Caps, clamp
from defragd.policy.convert import Fault, compile_schedules, compile_windows, to_mix, to_rules
from defragd.policy.loaded import LoadedPolicy, PolicySet
from defragd.policy.problems import describe, from_validation, names_at, nearest, value_at
from defragd.policy.schedule import never_allowed
from defragd.policy.schema import API_VERSION, KIND, DefragPolicy
from defragd.policy.strategy_args import check_args, model_of
from defragd.policy.yaml_source import MAX_BYTES, Document, Problem, read_documents, split_documents

SUFFIXES = (".yaml", ".yml", ".json")
HAMI_LOCK_EXPIRY_S = 300
"""A HAMi node lock left behind blocks binds for five minutes (reference: node lock)."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What policies are checked against. ``defaults`` is a partial ``spec`` of the whole installation."""

    strategies: Mapping[str, Any] | None = None
    caps: Caps = Caps()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    now: datetime | None = None


Known = dict[tuple[str, bytes], tuple[int, LoadedPolicy]]
"""Policies by file and digest of their text, with the line where that begins."""


def load_policies(
    paths: str | Path | Iterable[str | Path],
    context: Context | None = None,
    *,
    known: Known | None = None,
    pause: Callable[[], None] = lambda: None,
) -> PolicySet:
    """Read files and directories (their ``*.yaml``, ``*.yml``, ``*.json``; hidden ones are left out).

    Never raises for what files contain: see ``PolicySet.errors``. Of two policies with one name the first stays.
    ``known``: what an earlier call with the same context found; documents whose text is in it are not checked again.
    ``pause`` is called after each one that was checked.
    """
    context = context or Context()
    wanted = [paths] if isinstance(paths, (str, Path)) else list(paths)
    policies: dict[str, LoadedPolicy] = {}
    errors: list[Problem] = []
    warnings: list[Problem] = []
    before, now = dict(known or {}), {} if known is None else known
    now.clear()
    for path, listed in _files([Path(p) for p in wanted], errors):
        text = _read(path, errors)
        empty = text is not None
        for line, part in split_documents(text or ""):
            key = (str(path), hashlib.sha256(part.encode("utf-8", "surrogatepass")).digest())
            policy = _moved(before.get(key), line)
            found: list[tuple[Document | None, LoadedPolicy | None, list[Problem]]]
            if policy is not None and policy.name not in policies:
                found = [(None, policy, [])]
            else:
                documents, unreadable = read_documents(part, str(path), line)
                errors += unreadable
                ours = [d for d in documents if not listed or _is_ours(d.value)]
                strange = f"this is no {KIND} ({API_VERSION}) and is left out"
                warnings += [d.problem((), strange) for d in documents if d not in ours]
                found = [(document, *load_document(document, context)) for document in ours]
                empty = empty and not documents and not unreadable
                pause()
                if unreadable:
                    break
            for document, policy, problems in found:
                errors += problems
                if policy is None:
                    continue
                other = policies.get(policy.name)
                if document is not None and other is not None:
                    said = f'"{policy.name}" is the name of the policy at {other.source} already; give it another one'
                    errors.append(document.problem(("metadata", "name"), said))
                    continue
                policies[policy.name] = policy
                warnings += policy.warnings
                if isinstance(policy.model.spec.gain.expected_mix, str):  # others depend on a second file
                    now[key] = (line, policy)
                empty = False
        if empty:
            errors.append(Problem(str(path), 1, 1, "", f"holds no policy; it begins with apiVersion: {API_VERSION}"))
    return PolicySet(tuple(policies[name] for name in sorted(policies)), tuple(errors), tuple(warnings))


def _moved(found: tuple[int, LoadedPolicy] | None, line: int) -> LoadedPolicy | None:
    """The policy of an unchanged text that now begins at ``line``."""
    if found is None or found[0] == line:
        return found[1] if found else None
    by, policy = line - found[0], found[1]
    source, _, old = policy.source.rpartition(":")
    return dataclasses.replace(
        policy,
        source=f"{source}:{int(old) + by}",
        warnings=tuple(dataclasses.replace(w, line=w.line + by) for w in policy.warnings),
    )


def load_text(text: str, source: str = "<text>", context: Context | None = None) -> PolicySet:
    """Policies of one text (API, tests)."""
    documents, errors = read_documents(text, source)
    policies: dict[str, LoadedPolicy] = {}
    for document in documents:
        policy, problems = load_document(document, context or Context())
        errors += problems
        if policy is not None and policy.name in policies:
            errors.append(document.problem(("metadata", "name"), f'"{policy.name}" is taken by a policy above'))
        elif policy is not None:
            policies[policy.name] = policy
    found = tuple(policies.values())
    return PolicySet(found, tuple(errors), tuple(w for policy in found for w in policy.warnings))


def require(found: PolicySet) -> tuple[LoadedPolicy, ...]:
    """The policies, or PolicyError with every error in it (one a line)."""
    if found.errors:
        raise PolicyError("\n".join(str(problem) for problem in found.errors))
    return found.policies


def _files(paths: list[Path], errors: list[Problem]) -> Iterable[tuple[Path, bool]]:
    """(file, found by listing a directory)."""
    for path in paths:
        try:
            if path.is_dir():
                entries = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
                yield from ((entry, True) for entry in entries if entry.is_file())
            elif path.exists():
                yield path, False
            else:
                errors.append(Problem(str(path), 1, 1, "", "no such file or directory"))
        except OSError as error:
            errors.append(Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}"))


def _read(path: Path, errors: list[Problem]) -> str | None:
    try:
        if path.stat().st_size > MAX_BYTES:
            errors.append(Problem(str(path), 1, 1, "", f"larger than {MAX_BYTES // 2**20} MiB; this is no policy file"))
            return None
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        errors.append(Problem(str(path), 1, 1, "", f"is not UTF-8 text (byte {error.start})"))
        return None
    except OSError as error:
        errors.append(Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}"))
        return None
    # JSON may be indented with tabs, YAML not; a JSON string cannot hold one, so places stay right.
    return text.replace("\t", " ") if path.suffix == ".json" else text


def _is_ours(value: Any) -> bool:
    """Meant as a policy of ours: in a directory other manifests may lie beside them."""
    if not isinstance(value, Mapping):
        return True
    version, kind = value.get("apiVersion"), value.get("kind")
    foreign = isinstance(version, str) and isinstance(kind, str) and kind != KIND
    return not foreign or str(version).startswith("defragd")


def load_document(document: Document, context: Context) -> tuple[LoadedPolicy | None, list[Problem]]:
    """One document to a policy, or None with all its errors."""
    errors = list(document.problems)
    value = document.value
    if not isinstance(value, dict):
        return None, errors or [
            document.problem((), f"a policy is an object; it begins with apiVersion: {API_VERSION}")
        ]
    try:
        model = DefragPolicy.model_validate(_with_defaults(value, context.defaults))
    except ValidationError as error:
        errors += from_validation(document, error, DefragPolicy)
        if not _is_ours(value):
            return None, [problem for problem in errors if problem.path in ("apiVersion", "kind")] or errors
        return None, _in_order(errors + _args(document, context)[1])
    spec = model.spec
    now = context.now or datetime.now(UTC)
    schedules, faults = compile_schedules(spec)
    windows, more, said = compile_windows(spec, now)
    mix, mix_faults = to_mix(spec.gain, Path(document.source).parent)
    faults += more + mix_faults + _vendor_faults(model)
    errors += [document.problem(loc, text) for loc, text in faults]
    args, arg_errors = _args(document, context)
    errors += arg_errors
    if errors:
        return None, _in_order(errors)
    rules, capped = clamp(to_rules(spec, mix), context.caps)
    mode = spec.mode
    if mode not in context.caps.modes:
        capped.append(f"mode {mode} is not allowed by the installation; the policy runs as DryRun")
        mode = "DryRun"
    line, _, _ = document.find(())
    text = f"{model.model_dump_json(by_alias=True)} {rules!r} {mode}"
    policy = LoadedPolicy(
        name=model.metadata.name,
        source=f"{document.source}:{line}",
        digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        model=model,
        rules=rules,
        strategy=spec.strategy.name,
        args=args,
        mode=mode,
        schedules=schedules,
        windows=windows,
    )
    said += [(("spec", "budgets"), sentence) for sentence in capped]
    said += _doubts(policy, now)
    return dataclasses.replace(policy, warnings=tuple(document.problem(loc, text) for loc, text in said)), []


def _with_defaults(value: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The installation's defaults under what the policy says itself."""
    spec = value.get("spec")
    if not defaults or not isinstance(spec, dict):
        return value

    def merge(low: Any, high: Any) -> Any:
        if isinstance(low, Mapping) and isinstance(high, dict):
            return {
                **{k: copy.deepcopy(v) for k, v in low.items()},
                **{k: merge(low.get(k), v) for k, v in high.items()},
            }
        return high

    return {**value, "spec": merge(defaults, spec)}


def _vendor_faults(model: DefragPolicy) -> list[Fault]:
    return [
        (("spec", "scope", "vendors", index), f'unknown vendor "{word}"{nearest(word, VENDORS)}')
        for index, word in enumerate(model.spec.scope.vendors)
        if word not in VENDORS
    ]


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda problem: (problem.line, problem.column))


def _args(document: Document, context: Context) -> tuple[Mapping[str, Any], list[Problem]]:
    """The strategy's arguments, checked on the document itself so that their errors show beside all others."""
    spec = document.value.get("spec")
    wanted = spec.get("strategy") if isinstance(spec, dict) else None
    if not isinstance(wanted, dict) or not isinstance(wanted.get("name"), str):
        return {}, []
    base = ("spec", "strategy", "args")
    name, given = wanted["name"], wanted.get("args") or {}
    known = registry.strategies() if context.strategies is None else context.strategies
    strategy = known.get(name)
    if strategy is None:
        refused = registry.refused() if context.strategies is None else ()
        broken = next((str(plugin) for plugin in refused if plugin.name == name), "")
        text = broken or f'unknown strategy "{name}"{nearest(name, known)}'
        return {}, [document.problem(("spec", "strategy", "name"), text)]
    if not isinstance(given, dict):
        return {}, []
    kind = strategy.args_type
    instance, problems = check_args(kind, given)
    out = [
        describe(
            document,
            (*base, *p.loc),
            p.type,
            p.message,
            p.context,
            names_at(model_of(kind), p.loc[:-1]),
            value_at(given, p.loc),
        )
        for p in problems
    ]
    return ({}, out) if out or instance is None else (dataclasses.asdict(instance), [])


def _doubts(policy: LoadedPolicy, now: datetime) -> list[Fault]:
    """What is valid, but hardly meant."""
    said: list[Fault] = []
    spec = policy.model.spec
    if (policy.windows.allow or policy.windows.deny) and never_allowed(policy, now):
        what = "none of its starts is ever allowed" if policy.schedules else "they never let a move start"
        said.append((("spec", "windows"), f"the windows always deny: {what}"))
    if spec.execution.timeouts.start.total_seconds() < HAMI_LOCK_EXPIRY_S:
        text = "shorter than the 5m after which HAMi drops a left node lock; slow binds will count as failed"
        said.append((("spec", "execution", "timeouts", "start"), text))
    on = spec.trigger.start_on
    for name, wanted, strategy in (
        ("pendingPods", on.pending_pods, "make-room"),
        ("unhealthyDevices", on.unhealthy_devices, "gpu-drain"),
    ):
        others = ("best-fit", "gpu-drain", "node-drain", "make-room")
        if wanted is not None and policy.strategy in others and policy.strategy != strategy:
            text = f"{policy.strategy} does not aim at that; {strategy} does"
            said.append((("spec", "trigger", "startOn", name), text))
    if spec.free.deletion_cost and policy.mode == "DryRun":
        said.append((("spec", "free", "deletionCost"), "has no effect in mode DryRun"))
    arrivals = spec.budgets.per_target_node.in_flight
    if not isinstance(arrivals, int) or arrivals > 1:
        text = "HAMi binds one pod at a time on a node; more than 1 arrival in flight has no use"
        said.append((("spec", "budgets", "perTargetNode"), text))
    return said
