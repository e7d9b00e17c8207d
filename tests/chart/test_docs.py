"""The documentation: what it shows is what commands print, its links lead somewhere, its words exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from defragd.cli.main import COMMANDS
from defragd.core.annotations import KEYS
from defragd.core.reasons import Reason
from defragd.kube import certs, heartbeats, leader
from tests.chart import docs, policy_reference

ROOT = docs.ROOT
PAGES = (*docs.PAGES, ROOT / "README.zh-CN.md")
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in docs.PAGES if docs.BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_commands_print_what_the_pages_show(page: Path) -> None:
    assert docs.page(page) == page.read_text(), "run `python -m tests.chart.docs`"


def test_the_policy_reference_is_current() -> None:
    page = ROOT / "chart" / "docs" / "policies.md"
    assert page.read_text() == policy_reference.text(), "run `python -m tests.chart.generate`"


def anchors(text: str) -> set[str]:
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_and_options_exist(page: Path) -> None:
    import importlib

    for line in re.findall(r"(?:^|[\s`(])(?:kubectl )?defragd? ([a-z][a-z-]+[^`\n#|]*)", page.read_text()):
        words = line.split()
        if words[0] not in COMMANDS:
            continue
        command = importlib.import_module(f"defragd.cli.commands.{words[0].replace('-', '_')}").command
        nested = getattr(command, "commands", {}).get(words[1]) if len(words) > 1 else None
        known = {o for c in (command, nested) if c for p in c.params for o in (*p.opts, *p.secondary_opts)}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= known | {"--help"}, (line, used - known)


def test_what_uninstalling_leaves_is_found_by_the_documented_commands() -> None:
    """The lines delete by label and name: everything the daemon makes for itself has to carry them."""
    text = (ROOT / "chart" / "docs" / "upgrade.md").read_text()
    selector = re.search(r"delete lease -l (\S+)=(\S+)", text)
    assert selector
    for labels in (heartbeats.LABEL, leader.LABELS):
        assert labels[selector[1]] == selector[2]
    assert f"delete secret {certs.SECRET} " in text
    crds = re.search(r"delete crd (.+)", text)
    names = {yaml.safe_load(path.read_text())["metadata"]["name"] for path in (ROOT / "crds").glob("*.yaml")}
    assert crds and set(crds[1].split()) == names


def test_reasons_and_annotations_in_the_pages_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    tables = (ROOT / "chart" / "docs" / "troubleshooting.md").read_text()
    named = {word for line in tables.splitlines() if line.startswith("| `") for word in re.findall(
        r"`([A-Z][A-Za-z]+)`", line.split("|")[1])}  # fmt: skip
    assert named and named <= {str(reason) for reason in Reason}
    keys = set(re.findall(r"defragd\.io/[a-z-]+", text)) - {"defragd.io/paused", "defragd.io/requested-by"}
    assert keys <= set(KEYS)


def test_yaml_in_the_pages_is_yaml() -> None:
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            assert isinstance(yaml.safe_load(block), dict), (page, block)
