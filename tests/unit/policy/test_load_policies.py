"""Policy files: every error with its place and mend, defaults as documented, files and directories."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from defragd.cli import sources
from defragd.core.model import Expression
from defragd.core.rules import Budgets, Cap, Execution, Gain, Protection, Rules, Scope
from defragd.errors import PolicyError
from defragd.policy import yaml_source
from defragd.policy.caps import Caps
from defragd.policy.load import load_policies, load_text, require
from tests.support.effort import examples

HEAD = "apiVersion: defragd/v1\nkind: DefragPolicy\nmetadata: {name: p}\nspec:\n  strategy: {name: best-fit}\n"


def errors(context, spec="", text=None):
    return [str(e) for e in load_text(text if text is not None else HEAD + spec, "f.yaml", context).errors]


def one(context, spec=""):
    found = load_text(HEAD + spec, "f.yaml", context)
    assert not found.errors, [str(e) for e in found.errors]
    return found.policies[0]


def test_an_empty_policy_has_the_documented_defaults(context):
    policy = one(context)
    assert policy.rules == Rules(Scope(), Protection(), Gain(), Budgets(), Execution())
    assert (policy.mode, policy.schedules, policy.strategy) == ("DryRun", (), "best-fit")
    assert policy.args["objective"] == "auto"
    assert (policy.trigger.min_fragmentation, policy.trigger.max_pending_pods) == (0.15, 50)


def test_null_means_unlimited_and_an_empty_section_means_absent(context):
    policy = one(
        context,
        """
  scope:
  windows:
  budgets: {total: null, concurrent: null, perSourceNode: null, rate: null}
  protect: {priorityAtMost: null}
  execution: {abortAbove: null}
  trigger: {minFragmentation: null, maxPendingPods: null}
""",
    )
    budgets = policy.rules.budgets
    assert (budgets.total, budgets.concurrent, budgets.rate) == (None, None, None)
    assert budgets.per_source_node == Cap()
    assert budgets.per_namespace == Cap(in_flight=10)
    assert policy.rules.protect.priority_at_most is None
    assert policy.rules.execution.abort_above is None
    assert policy.trigger.min_fragmentation is None
    assert policy.rules.scope == Scope()


def test_budgets_as_numbers_and_as_objects(context):
    budgets = one(
        context, "  budgets: {perNamespace: 3, perWorkload: {perDay: 2}, perSourceNode: {inFlight: null, perRun: 7}}\n"
    ).rules.budgets
    assert budgets.per_namespace == Cap(in_flight=3)
    assert budgets.per_workload == Cap(in_flight=1, per_day=2)
    assert budgets.per_source_node == Cap(per_run=7)


def test_selectors_in_both_forms(context):
    scope = one(
        context,
        """
  scope:
    nodeSelector: {pool: a, on: "yes"}
    podSelector: {matchLabels: {b: c}, matchExpressions: [{key: d, operator: NotIn, values: [e]}]}
""",
    ).rules.scope
    assert scope.node_selector.expressions == (Expression("on", "In", ("yes",)), Expression("pool", "In", ("a",)))
    assert scope.pod_selector.expressions == (Expression("b", "In", ("c",)), Expression("d", "NotIn", ("e",)))


def test_drains_have_no_least_fragmentation_unless_written(context):
    text = HEAD.replace("best-fit", "gpu-drain")
    assert load_text(text, "f", context).policies[0].trigger.min_fragmentation is None
    written = load_text(text + "  trigger: {minFragmentation: 0.2}\n", "f", context).policies[0]
    assert written.trigger.min_fragmentation == 0.2


PLACES = [
    ("  foo: 1\n", 'f.yaml:6:3: spec: unknown field "foo"'),
    ("  budgets: {concurent: 5}\n", 'f.yaml:6:13: spec.budgets: unknown field "concurent", did you mean "concurrent"?'),
    (
        "  protect: {requirePdb: true}\n",
        'f.yaml:6:13: spec.protect: unknown field "requirePdb", did you mean "requirePDB"?',
    ),
    ("  budgets: {total: -1}\n", "f.yaml:6:20: spec.budgets.total: must be greater than or equal to 1"),
    ("  budgets: {total: 1.5}\n", "f.yaml:6:20: spec.budgets.total: a whole number is expected, not 1.5"),
    ("  budgets: {total: true}\n", "f.yaml:6:20: spec.budgets.total: a whole number is expected, not true"),
    ("  budgets: {total: many}\n", 'f.yaml:6:20: spec.budgets.total: a whole number is expected, not the text "many"'),
    ("  budgets: {perNamespace: -2}\n", "f.yaml:6:27: spec.budgets.perNamespace: must be greater than or equal to 1"),
    ("  budgets: {rate: 10}\n", "f.yaml:6:19: spec.budgets.rate: a rate needs a period, such as 10/m or 10/h"),
    ("  budgets: {rate: 0/m}\n", "f.yaml:6:19: spec.budgets.rate: "),
    ("  budgets: {spacing: -5s}\n", "f.yaml:6:22: spec.budgets.spacing: must not be negative"),
    ("  execution: {settle: 60}\n", "f.yaml:6:23: spec.execution.settle: a duration needs a unit, such as 60s or 60m"),
    (
        "  execution:\n    timeouts:\n      hold: soon\n",
        'f.yaml:8:13: spec.execution.timeouts.hold: "soon" is no duration',
    ),
    ("  execution: {timeouts: {hold: 0s}}\n", "f.yaml:6:32: spec.execution.timeouts.hold: must be more than 0"),
    ("  execution: {abortAbove: 30}\n", "f.yaml:6:27: spec.execution.abortAbove: must be less than or equal to 1"),
    ("  execution: {abortAbove: .nan}\n", "f.yaml:6:27: spec.execution.abortAbove: a finite number is expected"),
    ("  mode: auto\n", 'f.yaml:6:9: spec.mode: "auto" is none of DryRun, Approve or Auto, did you mean "Auto"?'),
    ("  mode: on\n", 'f.yaml:6:9: spec.mode: "on" is none of DryRun, Approve or Auto'),
    ("  schedule: {cron: 5}\n", 'f.yaml:6:20: spec.schedule.cron: text is expected, not 5; put it into quotes: "5"'),
    ('  schedule: {cron: "0 0 30 2 *"}\n', 'f.yaml:6:20: spec.schedule.cron: "0 0 30 2 *" never fires'),
    ('  schedule: [{cron: "@daily"}, {cron: "x"}]\n', "f.yaml:6:39: spec.schedule[1].cron: "),
    (
        '  schedule: {cron: "@daily", timeZone: europe/berlin}\n',
        'unknown time zone "europe/berlin", did you mean Europe/Berlin?',
    ),
    ('  schedule: {cron: "@daily", timeZone: Shanghai}\n', "did you mean Asia/Shanghai?"),
    ('  schedule: {cron: "@daily", timeZone: ../../etc/passwd}\n', "unknown time zone"),
    ('  schedule: {cron: "@daily", timeZone: Europe}\n', "unknown time zone"),
    ("  schedule: {}\n", 'f.yaml:6:13: spec.schedule: field "cron" is required'),
    ("  schedule: daily\n", 'f.yaml:6:13: spec.schedule: an object (name: value) is expected, not the text "daily"'),
    ("  windows: [{}]\n", "f.yaml:6:13: spec.windows[0]: needs exactly one of allow and deny"),
    ('  windows: [{deny: {cron: "@daily"}}]\n', "spec.windows[0].deny: duration is missing"),
    ("  windows: [{deny: {from: 2026-12-24}}]\n", "spec.windows[0].deny: to is missing"),
    (
        '  windows: [{deny: {cron: "@daily", duration: 1h, to: 2026-12-24}}]\n',
        "needs either cron and duration, or from and to",
    ),
    ("  windows: [{deny: {from: 2026-12-24, to: 2026-12-24}}]\n", '"to" (2026-12-24) is not after "from" (2026-12-24)'),
    ("  windows: [{deny: {from: 2026-13-01, to: 2026-12-24}}]\n", '"2026-13-01" is no time'),
    ("  windows: {deny: 1}\n", "f.yaml:6:12: spec.windows: a list is expected, not an object"),
    (
        "  scope: {vendors: [Nvidia]}\n",
        'f.yaml:6:21: spec.scope.vendors[0]: unknown vendor "Nvidia", did you mean "NVIDIA"?',
    ),
    (
        "  scope: {nodeSelector: {a: true}}\n",
        'spec.scope.nodeSelector.a: text is expected, not true; put it into quotes: "true"',
    ),
    ("  scope: {podSelector: {matchExpressions: [{key: a, operator: in}]}}\n", 'operator "in" is none of'),
    ("  gain: {perMove: -1}\n", "spec.gain.perMove: must be greater than or equal to 0"),
    ("  gain: {expectedMix: {clases: []}}\n", 'unknown field "clases", did you mean "classes"?'),
    ("  gain: {expectedMix: nowhere.json}\n", "nowhere.json cannot be read"),
    ("  strategy: {name: bestfit}\n", "f.yaml:6:3: spec.strategy: appears twice"),
    ("  1: x\n", "f.yaml:6:3: spec: 1 is no field name"),
    ("  mode: !!python/name:os.system x\n", "f.yaml:6:9: spec.mode: the tag !!python/name:os.system is not supported"),
    ("  trigger: {minFragmentation: 15%}\n", 'a number is expected, not the text "15%"'),
    ("  protect: {gangs: null}\n", "spec.protect.gangs: nothing is none of Whole, Members or Never"),
]


@pytest.mark.parametrize(("spec", "says"), PLACES, ids=[p[1][-40:] for p in PLACES])
def test_errors_have_place_path_and_mend(context, spec, says):
    found = errors(context, spec)
    assert any(says in line for line in found), found
    assert all(line.startswith("f.yaml:") for line in found)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("{objectiv: auto}", 'unknown field "objectiv", did you mean "objective"?'),
        ("{useIdleNodes: 1}", "spec.strategy.args.useIdleNodes: true or false is expected, not 1"),
        ("{count: 0}", "spec.strategy.args: count must be 1 or more"),
        ("{shape: {gpu: 2}}", 'spec.strategy.args.shape: unknown field "gpu", did you mean "gpus"?'),
        ("{words: [1]}", "spec.strategy.args.words[0]: text is expected, not 1"),
        ("5", "spec.strategy.args: an object (name: value) is expected, not 5"),
    ],
)
def test_strategy_arguments_are_checked_with_place(context, args, says):
    found = errors(context, text=HEAD.replace("{name: best-fit}", f"{{name: best-fit, args: {args}}}"))
    assert any(says in line for line in found), found


def test_strategy_arguments_in_camel_case_arrive_by_their_python_names(context):
    text = HEAD.replace(
        "{name: best-fit}", "{name: best-fit, args: {useIdleNodes: true, shape: {memMiB: 5}, words: [a]}}"
    )
    args = load_text(text, "f", context).policies[0].args
    assert (args["use_idle_nodes"], args["shape"], args["words"]) == (True, {"gpus": 1, "mem_mib": 5}, ("a",))


def test_all_errors_of_all_documents_at_once_in_order(context):
    text = (
        HEAD.replace("best-fit", "bestfit")
        + "  mode: x\n  budgets: {total: 0}\n---\n"
        + HEAD
        + "  nope: 1\n---\n"
        + HEAD
    )
    found = load_text(text, "f.yaml", context)
    assert [e.line for e in found.errors] == [5, 6, 7, 14]
    assert 'unknown strategy "bestfit", did you mean "best-fit"?' in str(found.errors[0])
    assert [p.name for p in found.policies] == ["p"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n", "f.yaml:1:1: a policy is an object"),
        ("just text", "f.yaml:1:1: a policy is an object"),
        ("a: [1\n", "not readable as YAML"),
        ("cron: * * * * *\n", "put values that begin with * & ! @ % into quotes"),
        ("a:\n\tb: 1\n", "indent with spaces, not tabs"),
        ("kind: DefragPolicy\n", 'field "apiVersion" is required'),
        (HEAD.replace("defragd/v1", "defragd/v2"), '"defragd/v2" is not defragd/v1'),
        (HEAD.replace("DefragPolicy", "Defragpolicy"), '"Defragpolicy" is not DefragPolicy'),
        (HEAD.replace("name: p", "name: P_1"), '"P_1" is no name'),
        (HEAD.replace("{name: p}", "{name: 5}"), "metadata.name: text is expected, not 5"),
        ("a: &a [*a]\n", "contains itself"),
        ("\x07", "not allowed in YAML"),
    ],
)
def test_documents_that_are_no_policy(context, text, says):
    found = errors(context, text=text)
    assert any(says in line for line in found), found


def test_an_alias_bomb_is_refused_quickly(context):
    text = "a: &l0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"k{i}: &l{i} [{','.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    begin = time.monotonic()
    assert "aliases" in errors(context, text=text)[0]
    assert time.monotonic() - begin < 2


def test_aliases_and_merge_keys_work_and_keep_their_places(context):
    text = (
        HEAD
        + "  budgets: &b {total: 5}\n---\n"
        + HEAD.replace("name: p", "name: q")
        + "  budgets: {<<: &x {total: 7, concurrent: 2}, concurrent: 3}\n"
    )
    found = load_text(text, "f", context)
    assert not found.errors
    assert [(p.rules.budgets.total, p.rules.budgets.concurrent) for p in found.policies] == [(5, 5), (7, 3)]


def test_directories_files_and_names(context, tmp_path):
    (tmp_path / "b.yaml").write_text(HEAD)
    (tmp_path / "a.yml").write_text(HEAD.replace("name: p", "name: z") + "---\n" + HEAD)
    (tmp_path / "c.json").write_text(json.dumps(yaml.safe_load(HEAD.replace("name: p", "name: j")), indent="\t"))
    (tmp_path / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\n")
    (tmp_path / ".hidden.yaml").write_text("?")
    (tmp_path / "notes.txt").write_text("?")
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    found = load_policies(tmp_path, context)
    assert [p.name for p in found.policies] == ["j", "p", "z"]
    said = [str(e) for e in found.errors]
    assert len(said) == 3
    assert any("b.yaml:3:18: metadata.name: " in e and "a.yml:7" in e for e in said), said
    assert any("bad.yaml" in e and "not UTF-8" in e for e in said)
    assert any("empty.yaml" in e and "holds no policy" in e for e in said)
    assert ["map.yaml" in str(w) for w in found.warnings] == [True]
    assert "no such file" in str(load_policies(tmp_path / "none.yaml", context).errors[0])
    explicit = [str(e) for e in load_policies(tmp_path / "map.yaml", context).errors]
    assert len(explicit) == 2 and '"v1" is not defragd/v1' in explicit[0] and "ConfigMap" in explicit[1]
    with pytest.raises(PolicyError, match="not UTF-8"):
        require(found)


def test_a_mix_file_is_read_beside_the_policy(context, tmp_path):
    mix = {
        "classes": [
            {
                "cpuMilli": 4000,
                "memoryMiB": 1024,
                "gpus": 1,
                "cores": 50,
                "memPercent": 50,
                "memMiB": 0,
                "types": [],
                "weight": 0.5,
            }
        ]
    }
    (tmp_path / "mix.json").write_text(json.dumps(mix))
    (tmp_path / "p.yaml").write_text(HEAD + "  gain: {expectedMix: mix.json}\n")
    found = load_policies(tmp_path / "p.yaml", context)
    assert not found.errors
    (wanted,) = found.policies[0].rules.gain.expected_mix
    assert (wanted.cpu_milli, wanted.memory_bytes, wanted.memory_pct, wanted.weight) == (4000, 2**30, 50, 0.5)
    (tmp_path / "mix.json").write_text('{"classes": [{"gpus": 0}]}')
    assert "mix.json: classes.0" in str(load_policies(tmp_path / "p.yaml", context).errors[0])


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ('  schedule: {cron: "0 10 * * *"}\n  windows: [{deny: {cron: "0 9 * * *", duration: 8h}}]\n', "always deny"),
        ('  windows: [{deny: {cron: "@daily", duration: 24h}}]\n', "always deny"),
        ("  windows: [{deny: {from: 2020-01-01, to: 2020-02-01}}]\n", "is over"),
        ("  execution: {timeouts: {start: 4m}}\n", "node lock"),
        ("  budgets: {perTargetNode: 3}\n", "one pod at a time"),
    ],
)
def test_doubtful_but_valid_things_warn(context, spec, says):
    found = load_text(HEAD + spec, "f.yaml", context)
    assert not found.errors
    assert [says in str(w) for w in found.warnings] == [True]


def test_installation_defaults_lie_under_the_policy_and_caps_above_it(context):
    changed = dataclasses.replace(
        context,
        defaults={"budgets": {"total": 7, "concurrent": 2}, "protect": {"minReplicas": 3}},
        caps=Caps(total=6, per_day=100, per_workload=1, modes=("DryRun", "Approve")),
    )
    policy = load_text(HEAD + "  mode: Auto\n  budgets: {concurrent: 4}\n", "f", changed).policies[0]
    assert (policy.rules.budgets.total, policy.rules.budgets.concurrent, policy.rules.budgets.per_day) == (6, 4, 100)
    assert policy.rules.protect.min_replicas == 3
    assert policy.mode == "DryRun"
    assert sorted(str(w).split(": ", 2)[2][:16] for w in policy.warnings) == [
        "budgets.perDay i",
        "budgets.total is",
        "mode Auto is not",
    ]


def test_the_digest_changes_with_any_value_and_not_with_layout(context):
    a, b = one(context).digest, load_text(HEAD.replace("{name: p}", "\n  name: p"), "g", context).policies[0].digest
    assert a == b
    assert one(context, "  budgets: {total: 49}\n").digest != a


@pytest.mark.slow
def test_a_thousand_policies(context, tmp_path):
    (tmp_path / "many.yaml").write_text(
        "---\n".join(HEAD.replace("name: p", f"name: p{i}") + '  schedule: {cron: "0 2 * * *"}\n' for i in range(1000))
    )
    begin = time.process_time()
    found = load_policies(tmp_path, context)
    assert len(found.policies) == 1000 and not found.errors
    assert time.process_time() - begin < 10


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["5m", "10/m", "@daily", "0 2 * * *", "Europe/Berlin", "Auto", "auto", "2026-12-24", "NVIDIA"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cron", "deny", "from", "total", "x", "inFlight", "matchLabels", "file"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
SECTIONS = {
    "strategy": ["name", "args"],
    "mode": [],
    "suspend": [],
    "schedule": ["cron", "timeZone", "startingDeadline", "maxDuration"],
    "windows": ["allow", "deny"],
    "trigger": ["minFragmentation", "maxPendingPods", "lightNodes", "sinceLastEviction"],
    "scope": ["nodeSelector", "namespaces", "podSelector", "vendors", "deviceTypes"],
    "protect": [
        "minPodAge",
        "minReplicas",
        "priorityAtMost",
        "ownerKinds",
        "requirePDB",
        "localStorage",
        "volumes",
        "notReady",
        "gangs",
    ],
    "gain": ["perMove", "total", "expectedMix", "acceptPartial"],
    "budgets": [
        "total",
        "perDay",
        "concurrent",
        "perSourceNode",
        "perTargetNode",
        "perNamespace",
        "perWorkload",
        "spacing",
        "rate",
    ],
    "execution": ["handover", "timeouts", "settle", "abortAbove", "cooldown", "approvalExpires"],
}


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(sorted(SECTIONS)), st.integers(0, 20), VALUE)
def test_nonsense_in_every_field_gives_errors_with_places_or_a_policy(context, section, index, value):
    spec = {"strategy": {"name": "best-fit"}}
    fields = SECTIONS[section]
    spec[section] = {fields[index % len(fields)]: value} if fields and index else value
    text = yaml.safe_dump(
        {"apiVersion": "defragd/v1", "kind": "DefragPolicy", "metadata": {"name": "p"}, "spec": spec},
        allow_unicode=True,
    )
    found = load_text(text, "f.yaml", context)
    assert found.errors or found.policies
    for problem in found.errors:
        assert problem.line >= 1 and problem.column >= 1 and 0 < len(problem.message) < 500 and "\n" not in str(problem)
    for policy in found.policies:
        json.dumps(policy.document)
        again = load_text(yaml.safe_dump(policy.document), "g.yaml", context)
        assert not again.errors and again.policies[0].digest == policy.digest


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80))
def test_any_text_at_all(context, text):
    found = load_text(text, "f.yaml", context)
    assert not found.policies
    for problem in found.errors:
        assert str(problem).startswith("f.yaml:")


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2000), st.text(alphabet="{}[]:,&*!|>'\"%@`\t\n -?#ab1", max_size=4))
def test_a_policy_with_a_piece_of_junk_in_it(context, position, junk):
    text = (
        HEAD
        + '  schedule: {cron: "0 2 * * *", timeZone: Asia/Shanghai}\n'
        + '  windows: [{deny: {cron: "0 9 * * MON-FRI", duration: 8h}}]\n  budgets: {total: 5, rate: 10/m}\n'
    )
    at = position % len(text)
    found = load_text(text[:at] + junk + text[at:], "f.yaml", context)
    assert all(str(problem).startswith("f.yaml:") for problem in found.errors)


@pytest.mark.parametrize("name", ["best-fit", "gpu-drain", "make-room", "node-drain"])
def test_both_parsers_tell_the_same_values_and_places(name):
    text = (sources.shipped_policies() / f"{name}.yaml").read_text() + "\n---\na: &x [1, {b: é, c: 'd\n  e'}]\nf: *x\n"
    fast, slow = (yaml_source._compose(kind(text), "f") for kind in (yaml_source._FastLoader, yaml_source._Loader))
    assert [d.value for d in fast] == [d.value for d in slow]
    for one_, other in zip(fast, slow, strict=True):
        spots = [("spec", "mode"), ("spec", "budgets", "total"), ("f", 1, "c"), ("a", 0), ("metadata", "name")]
        assert [one_.find(at) for at in spots] == [other.find(at) for at in spots]


def test_deep_nesting_does_not_reach_the_parser_in_c(context):
    for text in ("[" * 100_000, "{a: " * 50_000, "- " * 50_000 + "x", "\n".join("- " * 9 + "[" for _ in range(600))):
        assert not yaml_source._shallow(text)
    assert "YAML" in errors(context, text="[" * 2000)[0]
