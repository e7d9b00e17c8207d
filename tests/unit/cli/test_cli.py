"""The command line as people call it: output forms, one-line errors, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli_states import make_node, make_pod, replica_set
from click.testing import CliRunner

from defragd.cli.main import cli, run

REPO = Path(__file__).parents[3]
POLICY = """\
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: nightly}
spec:
  strategy: {name: best-fit}
  schedule: {cron: "30 2 * * *", timeZone: Europe/Berlin}
  trigger: {minFragmentation: null}
  windows: [{deny: {cron: "0 9 * * MON-FRI", duration: 8h}}]
"""


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(POLICY)
    return str(path)


def call(*args):
    """(exit code, stdout, stderr). Plans are bounded by steps, so that they are quick and always the same."""
    if args[:1] == ("plan",) and "--max-steps" not in args:
        args = (*args, "--max-steps", "100")
    runner = CliRunner()
    with runner.isolation() as (out, err, _both):
        code = run(list(args))
        return code, out.getvalue().decode(), err.getvalue().decode()


def test_plan_prints_the_documented_object(world, policy):
    code, out, err = call(
        "plan", "--policy", policy, "--snapshot", world, "-o", "json", "--now", "2026-12-01T02:00:00Z"
    )
    assert code == 0, err
    plan = json.loads(out)
    assert {
        "policy",
        "strategy",
        "dryRun",
        "score",
        "freed",
        "moves",
        "waves",
        "refused",
        "warnings",
        "notes",
        "stopped",
        "elapsedSeconds",
    } <= set(plan)
    assert (plan["policy"], plan["strategy"], plan["dryRun"]) == ("nightly", "best-fit", True)
    (move,) = plan["moves"]
    assert move["pod"] in ("team/a", "team/b") and move["from"]["node"] == move["to"]["node"] == "n1"
    assert move["from"]["devices"] != move["to"]["devices"]
    assert plan["waves"] == [[move["id"]]]
    assert any(item["reason"] == "PDBUnknown" for item in plan["warnings"])
    assert "warning: " in err and "PDBUnknown" in err


def test_plan_in_other_forms(world, policy):
    common = ("plan", "--policy", policy, "--snapshot", world, "--now", "2026-12-01T02:00:00Z")
    code, out, _ = call(*common)
    assert code == 0 and out.splitlines()[0].split() == ["MOVE", "POD", "FROM", "TO", "WAVE", "GAIN"]
    assert "1 move in 1 wave" in out
    assert call(*common, "-o", "wide")[1].splitlines()[0].split()[-1] == "WHY"
    assert yaml.safe_load(call(*common, "-o", "yaml")[1])["policy"] == "nightly"
    assert call(*common, "-o", "name")[1].startswith("move/")
    assert call(*common, "--exit-code")[0] == 4
    assert call(*common, "--no-headers")[1].startswith("m")


def test_the_same_call_gives_the_same_plan(world, policy):
    common = (
        "plan",
        "--policy",
        policy,
        "--snapshot",
        world,
        "-o",
        "json",
        "--now",
        "2026-12-01T02:00:00Z",
        "--seed",
        "3",
    )
    one, two = (json.loads(call(*common)[1]) for _ in range(2))
    assert one.pop("elapsedSeconds") >= 0 and two.pop("elapsedSeconds") >= 0
    assert one == two


def test_notes_say_what_would_have_kept_it_from_running(world, policy):
    common = ("plan", "--policy", policy, "--snapshot", world, "-o", "json", "--now")
    notes = json.loads(call(*common, "2026-12-01T10:00:00+01:00")[1])["notes"]
    assert any("denied by window" in note for note in notes)
    notes = json.loads(call(*common, "2026-12-01T20:00:00+01:00")[1])["notes"]
    assert any("no start of its schedule is due, the next one is 2026-12-02T02:30+01:00" in note for note in notes)
    notes = json.loads(call(*common, "2026-12-01T02:31:00+01:00")[1])["notes"]
    assert not [note for note in notes if note.startswith("would not run")]
    Path(policy).write_text(
        POLICY.replace("minFragmentation: null", "maxPendingPods: 0, minFragmentation: 1") + "  suspend: true\n"
    )
    notes = json.loads(call(*common, "2026-12-01T02:31:00+01:00")[1])["notes"]
    assert any("suspended" in note for note in notes) and any("minFragmentation" in note for note in notes)


def test_policies_by_name(world, policy):
    assert call("plan", "--policy", "best-fit", "--snapshot", world)[0] == 0
    directory = str(Path(policy).parent)
    assert (
        json.loads(call("plan", "--policy", "nightly", "--policies", policy, "--snapshot", world, "-o", "json")[1])[
            "policy"
        ]
        == "nightly"
    )
    code, _, err = call("plan", "--policy", "bestfit", "--snapshot", world)
    assert code == 2 and err == 'error: no policy "bestfit" in the shipped policies, did you mean "best-fit"?\n'
    Path(directory, "two.yaml").write_text(POLICY + "---\n" + POLICY.replace("nightly", "weekly"))
    code, _, err = call("plan", "--policy", f"{directory}/two.yaml", "--snapshot", world)
    assert code == 2 and "holds 2 policies (nightly, weekly)" in err


@pytest.mark.parametrize("name", ["best-fit", "gpu-drain", "node-drain", "make-room"])
def test_every_shipped_policy_plans(world, name):
    code, out, err = call("plan", "--policy", name, "--snapshot", world, "-o", "json")
    assert code == 0, err
    assert json.loads(out)["strategy"] == name


def test_broken_annotations_are_named_and_the_rest_goes_on(tmp_path, policy):
    items = [make_node("n1", "GPU-a", "GPU-b"), make_pod("ok", "n1", "GPU-a", 1024), replica_set("ok")]
    items += [make_pod(f"bad{i}", "n1", "GPU-b", 10, **{"defragd.io/allowed-hours": "?"}) for i in range(30)]
    items += [make_pod("garbage", "n1", "GPU-b", 10, **{"hami.io/vgpu-devices-allocated": "xx"})]
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    code, out, err = call("plan", "--policy", policy, "--snapshot", str(path), "-o", "json")
    assert code == 0, err
    plan = json.loads(out)
    assert sum(item["reason"] == "MalformedAnnotation" for item in plan["warnings"]) == 30
    assert len(err.splitlines()) == 21 and "more warnings" in err.splitlines()[-1]
    assert any(item["object"] == "team/garbage" for item in plan["warnings"] + plan["refused"])


BAD = [
    (["plan"], 2, "Missing option '--policy'"),
    (["plan", "--policy", "best-fit", "--snapshot", "{nowhere}"], 2, "cannot be read"),
    (["plan", "--policy", "{nowhere}/p.yaml", "--snapshot", "{world}"], 2, "no such file or directory"),
    (["plan", "--policy", "best-fit", "--snapshot", "{policy}"], 2, "a v1 List"),
    (
        ["plan", "--policy", "best-fit", "--snapshot", "{world}", "--kubeconfig", "x"],
        2,
        "either --snapshot or --kubeconfig",
    ),
    (["plan", "--policy", "best-fit", "--snapshot", "{world}", "--now", "tomorrow"], 2, "is no time"),
    (["plan", "--policy", "best-fit", "--snapshot", "{world}", "--now", "2026-12-01T00:00:00"], 2, "has no offset"),
    (["plan", "--policy", "best-fit", "--snapshot", "{world}", "--time-limit", "30"], 2, "is no duration"),
    (["plan", "--policy", "best-fit", "--snapshot", "{world}", "--time-limit", "0"], 2, "more than 0"),
    (["plan", "--policy", "best-fit", "--snapshot", "{world}", "-o", "xml"], 2, "'xml' is not one of"),
    (["plan", "--policy", "best-fit", "--snapshot", "{world}", "--max-steps", "-1"], 2, "--max-steps"),
    (["plan", "--policy", "best-fit", "--kubeconfig", "{nowhere}"], 2, "{nowhere}"),
    (["score", "--kubeconfig", "{policy}"], 2, "{policy}"),
    (["score", "--kubeconfig", "{dead}"], 3, "127.0.0.1:9"),
    (["snapshot", "--kubeconfig", "{dead}"], 3, "127.0.0.1:9"),
    (["snapshot", "--snapshot", "{world}", "--kubeconfig", "{dead}"], 2, "not both"),
    (["explain", "pod", "team/none", "--snapshot", "{world}"], 2, "pod team/none not found"),
    (["explain", "pod", "team/a", "-n", "other", "--snapshot", "{world}"], 2, "give one of the two"),
    (["explain", "node", "n3", "--snapshot", "{world}"], 2, "node n3 not found"),
    (["explain", "device", "GPU-x", "--snapshot", "{world}"], 2, "device GPU-x not found"),
    (["explain", "thing", "x"], 2, "No such command"),
    (["policy", "validate"], 2, "Missing argument"),
    (["policy", "validate", "{nowhere}"], 2, "no such file or directory"),
    (["policy", "schedule", "{policy}", "--count", "0"], 2, "--count"),
    (["policy", "show", "none"], 2, 'no policy "none"'),
    (["plann"], 2, 'did you mean "plan"?'),
    (["--nope"], 2, "No such option"),
]


@pytest.mark.parametrize(("args", "code", "says"), BAD, ids=[" ".join(b[0])[:40] + b[2][:20] for b in BAD])
def test_bad_input_is_one_clear_line_and_its_exit_code(world, policy, tmp_path, args, code, says):
    dead = tmp_path / "kubeconfig"
    dead.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": True}}
                ],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    names = {"world": world, "policy": policy, "nowhere": str(tmp_path / "nowhere"), "dead": str(dead)}
    got, out, err = call(*(arg.format(**names) for arg in args))
    assert got == code, err
    assert says.format(**names) in err
    assert [line[:7] for line in err.splitlines()] == ["error: "]
    assert out == "" or args[:2] == ["policy", "validate"]


def test_policy_validate(policy, tmp_path):
    assert call("policy", "validate", policy) == (0, "1 policy valid, 0 errors\n", "")
    bad = tmp_path / "bad.yaml"
    bad.write_text(POLICY.replace("nightly", "other") + "  bugdets: {total: 1}\n  mode: auto\n")
    code, out, err = call("policy", "validate", policy, str(bad))
    assert code == 2 and out == "1 policy valid, 2 errors\n"
    assert [line.split(": ")[:3] for line in err.splitlines()] == [
        ["error", f"{bad}:9:3", "spec"],
        ["error", f"{bad}:10:9", "spec.mode"],
    ]
    assert 'unknown field "bugdets", did you mean "budgets"?' in err
    warned = tmp_path / "warned.yaml"
    warned.write_text(POLICY.replace("0 9 * * MON-FRI", "0 0 * * *").replace("8h", "24h"))
    code, out, err = call("policy", "validate", str(warned))
    assert code == 0 and err.startswith("warning: ") and "always deny" in err


def test_policy_schedule_across_the_clock_change(policy):
    code, out, _ = call("policy", "schedule", policy, "--now", "2026-10-24T12:00:00Z", "--count", "3", "-o", "json")
    assert code == 0
    (item,) = json.loads(out)
    assert (item["policy"], item["timeZone"]) == ("nightly", "Europe/Berlin")
    assert [(s["utc"], s["local"]) for s in item["starts"]] == [
        ("2026-10-25T00:30:00Z", "2026-10-25T02:30:00+02:00"),
        ("2026-10-26T01:30:00Z", "2026-10-26T02:30:00+01:00"),
        ("2026-10-27T01:30:00Z", "2026-10-27T02:30:00+01:00"),
    ]
    assert all(s["allowed"] and s["reason"] == "" for s in item["starts"])


def test_policy_schedule_marks_denied_starts(policy):
    Path(policy).write_text(POLICY.replace("30 2 * * *", "0 */6 * * *"))
    starts = json.loads(
        call("policy", "schedule", policy, "--now", "2026-12-01T00:00:00Z", "--count", "4", "-o", "json")[1]
    )[0]["starts"]
    assert [s["allowed"] for s in starts] == [True, False, True, True]
    table = call("policy", "schedule", policy, "--now", "2026-12-01T00:00:00Z")[1]
    assert "denied by window" in table


def test_policy_list_and_show(policy):
    code, out, _ = call("policy", "list", "-o", "name")
    assert code == 0 and out.split() == ["policy/best-fit", "policy/gpu-drain", "policy/make-room", "policy/node-drain"]
    listed = json.loads(call("policy", "list", policy, "--now", "2026-12-01T00:00:00Z", "-o", "json")[1])
    assert listed[0]["nextStart"] == "2026-12-01T02:30:00+01:00"
    shown = yaml.safe_load(call("policy", "show", policy)[1])
    assert shown["spec"]["budgets"]["perWorkload"]["inFlight"] == 1
    assert json.loads(call("policy", "schema")[1])["title"] == "DefragPolicy"


def test_explain(world, policy):
    code, out, _ = call("explain", "pod", "a", "-n", "team", "--snapshot", world, "--now", "2026-12-01T02:00:00Z")
    assert code == 0 and "may move" in out and "n1/GPU-b" in out
    found = json.loads(
        call(
            "explain",
            "pod",
            "team/a",
            "--snapshot",
            world,
            "-o",
            "json",
            "--policy",
            policy,
            "--now",
            "2026-11-01T00:10:00Z",
        )[1]
    )
    assert (found["verdict"], found["reason"], found["until"]) == ("notNow", "TooYoung", "2026-11-01T00:30:00+00:00")
    assert "n1" in call("explain", "node", "n1", "--snapshot", world)[1]
    assert "gpu-0" in call("explain", "node", "n1", "--snapshot", world, "-o", "wide")[1]
    assert "GPU-a" in call("explain", "device", "n1/gpu-0", "--snapshot", world)[1]


def test_score(world):
    value = json.loads(call("score", "--snapshot", world, "-o", "json")[1])
    assert (value["cluster"]["nodes"], value["cluster"]["devices"]) == (2, 3)
    assert 0 <= value["cluster"]["L"] <= 1
    first = value["nodes"][0]
    assert (first["freeMiB"], first["largestHoleMiB"]) == (28672, 14336)
    assert call("score", "--snapshot", world, "--level", "device")[1].splitlines()[0].split()[0] == "NODE"
    assert "NVIDIA-A10" in call("score", "--snapshot", world)[1]


def test_snapshot_of_a_snapshot_plans_alike(world, policy, tmp_path):
    again = str(tmp_path / "again.json.gz")
    code, _, err = call("snapshot", "--snapshot", world, "-o", again)
    assert code == 0, err
    common = ("plan", "--policy", policy, "-o", "json", "--now", "2026-12-01T02:00:00Z", "--snapshot")
    one, two = (json.loads(call(*common, path)[1]) for path in (world, again))
    assert [m["to"] for m in one["moves"]] == [m["to"] for m in two["moves"]]
    hidden = str(tmp_path / "hidden.json")
    assert call("snapshot", "--snapshot", world, "-o", hidden, "--anonymize")[0] == 0
    assert "team" not in Path(hidden).read_text()


def test_hamis_own_configuration_as_a_file(world, policy, tmp_path):
    config = tmp_path / "device-config.yaml"
    config.write_text("nvidia: {resourceCountName: other.com/gpu}\n")
    code, out, _ = call("score", "--snapshot", world, "-o", "json", "--hami-config", str(config))
    assert code == 0 and json.loads(out)["cluster"]["devices"] == 3
    config.write_text("- x\n")
    code, _, err = call("plan", "--policy", policy, "--snapshot", world, "--hami-config", str(config))
    assert code == 2 and "no device-config.yaml" in err


def test_help_names_every_command_and_every_command_has_help():
    code, out, _ = call()
    assert code == 0
    for name in cli.list_commands(None):
        assert name in out
        assert call(name, "--help")[0] == 0
    assert call("policy")[0] == 0


# -- as a process ---------------------------------------------------------------------------------------------------


def shell(*args, **options):
    code = "import sys; sys.argv[0] = {!r}; from defragd.cli.main import main; main()".format(
        options.pop("name", "defragd")
    )
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, cwd=REPO, **options
    )


@pytest.mark.slow
def test_exit_codes_and_streams_of_the_process(world, policy):
    done = shell("plan", "--policy", policy, "--snapshot", world, "-o", "json", "--max-steps", "100")
    assert done.returncode == 0 and json.loads(done.stdout)["policy"] == "nightly"
    bad = shell("plan", "--policy", "nope", "--snapshot", world)
    assert (bad.returncode, bad.stdout) == (2, "") and bad.stderr.startswith("error: no policy")
    assert "Traceback" not in bad.stderr
    told = shell("plan", "--policy", "nope", "--snapshot", world, "-v")
    assert told.returncode == 2 and "Traceback" in told.stderr and told.stderr.splitlines()[-1].startswith("error: ")


def test_version_is_quick_because_it_imports_nothing_heavy():
    done = shell("--version")
    assert done.returncode == 0 and done.stdout.startswith("defragd ")
    heavy = ("pydantic", "numpy", "kubernetes", "yaml", "networkx", "flask")
    code = "import sys; from defragd.cli.main import run; run(['--version']); "
    code += f"print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.splitlines()[-1]
        == "[]"
    )


def test_as_a_kubectl_plugin_the_usage_says_so():
    assert "Usage: kubectl defrag" in shell("--help", name="/usr/bin/kubectl-defrag").stdout


def test_a_reader_that_goes_away_is_no_error(world):
    line = f"{sys.executable} -m defragd.cli.main score --snapshot {world} --level device -o json | head -n 1"
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {line}; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr and "error" not in done.stderr


def test_a_name_that_two_policies_have_is_not_guessed(world, policy, tmp_path):
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("a.yaml", "b.yaml"):
        (folder / name).write_text(Path(policy).read_text())
    code, out, err = call("plan", "--policy", "nightly", "--policies", str(folder), "--snapshot", world)
    assert (code, out) == (2, "")
    assert "b.yaml" in err and "already" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.slow
def test_output_that_cannot_be_written_is_one_line():
    """A full disk, and no standard output at all."""
    command = [sys.executable, "-m", "defragd.cli.main", "policy", "list", "policies", "-o", "yaml"]
    root = Path(__file__).parents[3]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=root, timeout=60)
    assert (done.returncode, done.stderr) == (1, "error: output cannot be written: No space left on device\n")
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, cwd=root, timeout=60
    )
    assert (closed.returncode, closed.stderr) == (0, "")
