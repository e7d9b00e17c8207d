"""YAML documents that remember where every value stands, so that an error can name its line and column.

Stricter than PyYAML's safe loader, because a policy must never mean something that its author did not see: duplicate
keys are errors, keys are text, ``on``/``yes``/``1:30``/dates stay text (YAML 1.2), and alias bombs are refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 16 * 2**20
MAX_NODES = 200_000
"""Values of one document after aliases are expanded."""
MAX_DEPTH = 64
MAX_LINE = MAX_OPEN = 500
"""Texts with longer lines, or documents with more brackets, are read by the slower parser (see `_shallow`)."""

Loc = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One error or warning at a place. ``path`` is dotted (``spec.budgets.total``), "" for the whole document."""

    source: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        path = f"{self.path}: " if self.path else ""
        return f"{self.source}:{self.line}:{self.column}: {path}{self.message}"


_RESOLVERS = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?[0-9]+$", [*"-+0123456789"]),
    (
        "float",
        r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.inf|\.Inf)$|^\.(?:nan|NaN)$",
        [*"-+0123456789."],
    ),
    ("merge", r"^<<$", ["<"]),
)
"""YAML 1.2's core schema, and the merge key."""


class _Loader(yaml.SafeLoader):
    """Scanner, parser and composer of PyYAML; construction is done here."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same with libyaml's parser where PyYAML has it: ten times as fast."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


for _kind, _pattern, _first in _RESOLVERS:
    for _loader in (_Loader, _FastLoader):
        _loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern, re.ASCII), _first)


@dataclass(frozen=True)
class Document:
    """One YAML document: its value as plain Python and the node tree that knows the places."""

    source: str
    value: Any
    root: yaml.Node
    problems: tuple[Problem, ...] = ()

    def find(self, loc: Iterable[int | str], *, key: bool = False) -> tuple[int, int, str]:
        """(line, column, dotted path) of the deepest part of ``loc`` that exists in the text.

        Parts that do not exist (names of union members, indexes of a list that was written as one object) are passed
        over. ``key``: the place of the last key rather than of its value.
        """
        node, mark, path = self.root, self.root.start_mark, ""
        for part in loc:
            if isinstance(node, yaml.MappingNode):
                pair = _pair(node, part)
                if pair is None:
                    continue
                mark = (pair[0] if key else pair[1]).start_mark
                node, path = pair[1], f"{path}.{part}" if path else str(part)
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
                node = node.value[part]
                mark, path = node.start_mark, f"{path}[{part}]"
        return mark.line + 1, mark.column + 1, path

    def problem(self, loc: Iterable[int | str], message: str, *, key: bool = False) -> Problem:
        line, column, path = self.find(loc, key=key)
        return Problem(self.source, line, column, path, message)


def _pair(node: yaml.MappingNode, part: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    merged: tuple[yaml.Node, yaml.Node] | None = None
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            for source in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                if isinstance(source, yaml.MappingNode) and merged is None:
                    merged = _pair(source, part)
        elif isinstance(key, yaml.ScalarNode) and key.value == part:
            return key, value
    return merged


def split_documents(text: str) -> list[tuple[int, str]]:
    """(first line, text) of each document, in order. A text with directives stays whole."""
    if re.search(r"^(%|\.\.\.)", text, re.MULTILINE):
        return [(1, text)]
    starts = [0, *(m.start() for m in re.finditer(r"(?<=\n)---(?=\s|$)", text)), len(text)]
    parts = [text[begin:end] for begin, end in itertools.pairwise(starts)]
    lines = itertools.accumulate((part.count("\n") for part in parts), initial=1)
    return [(line, part) for line, part in zip(lines, parts, strict=False) if part]


def read_documents(text: str, source: str, line: int = 1) -> tuple[list[Document], list[Problem]]:
    """All documents of a text; empty ones are left out. A syntax error ends the reading of its file.

    Never raises on bad text: every fault is a Problem, those inside a document also in ``Document.problems``. ``line``
    is where in its file the text begins.
    """
    text = "\n" * (line - 1) + text
    if len(text) > MAX_BYTES:
        return [], [Problem(source, 1, 1, "", f"larger than {MAX_BYTES // 2**20} MiB; this is no policy file")]
    if _shallow(text):
        try:
            return _compose(_FastLoader(text), source), []
        except (yaml.YAMLError, RecursionError, ValueError):
            pass  # read once more by the other parser, whose words people know
    documents: list[Document] = []
    try:
        _compose(_Loader(text), source, documents)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return documents, [Problem(source, line, column, "", f"not readable as YAML: {_explain(error, text, line)}")]
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        detail = f"the character #x{ord(text[error.position]):04x} is not allowed in YAML"
        return documents, [Problem(source, line, 1, "", detail)]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return documents, [Problem(source, 1, 1, "", f"not readable as YAML: {type(error).__name__}")]
    return documents, []


def _compose(loader: Any, source: str, into: list[Document] | None = None) -> list[Document]:
    """The documents of a loader. ``into``: also holds those before a fault."""
    documents = [] if into is None else into
    while loader.check_node():
        root = loader.get_node()
        if root is None:
            break
        built = _Builder(source)
        value = built.build(root, ())
        if value is not None or built.problems:
            documents.append(Document(source, value, root, tuple(built.problems)))
    return documents


def _shallow(text: str) -> bool:
    """Whether nesting is bounded at a glance: libyaml's composer recurses in C, where only the stack stops it."""
    longest = max(map(len, text.splitlines()), default=0)
    return longest <= MAX_LINE and all(part.count("[") + part.count("{") <= MAX_OPEN for part in text.split("\n---"))


def _explain(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    said = (error.problem or str(error)).replace("\n", " ")
    lines = text.splitlines()
    at = lines[line - 1] if line <= len(lines) else ""
    if re.search(r":\s*[*&!@%`]", at):
        said += '; put values that begin with * & ! @ % into quotes, such as cron: "* * * * *"'
    elif "\t" in at:
        said += "; indent with spaces, not tabs"
    return said


@dataclass
class _Builder:
    """Node tree to plain values, collecting every fault. Shared (aliased) nodes are built once."""

    source: str
    problems: list[Problem] = field(default_factory=list)
    done: dict[int, tuple[Any, int]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def build(self, root: yaml.Node, path: Loc) -> Any:
        value, size = self._node(root, path)
        if size > MAX_NODES:
            self._say(root, path, f"more than {MAX_NODES} values once aliases are expanded")
            return None
        return value

    def _say(self, node: yaml.Node, path: Loc, message: str) -> None:
        dotted = ""
        for part in path:
            dotted += f"[{part}]" if isinstance(part, int) else f".{part}" if dotted else part
        mark = node.start_mark
        self.problems.append(Problem(self.source, mark.line + 1, mark.column + 1, dotted, message))

    def _node(self, node: yaml.Node, path: Loc) -> tuple[Any, int]:
        ident = id(node)
        if ident in self.done:
            return self.done[ident]
        if ident in self.open or len(path) > MAX_DEPTH:
            self._say(node, path, "contains itself" if ident in self.open else "nested too deeply")
            return None, 1
        self.open.add(ident)
        built: tuple[Any, int]
        if isinstance(node, yaml.MappingNode):
            built = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            pairs = [self._node(child, (*path, index)) for index, child in enumerate(node.value)]
            built = [value for value, _ in pairs], 1 + sum(size for _, size in pairs)
        else:
            built = self._scalar(node, path), 1
        self.open.discard(ident)
        self.done[ident] = built
        return built

    def _mapping(self, node: yaml.MappingNode, path: Loc) -> tuple[dict[str, Any], int]:
        out: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        size = 1
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for source in sources:
                    more, count = self._node(source, path)
                    size += count
                    if isinstance(more, dict):
                        inherited = {**more, **inherited}
                    else:
                        self._say(value, path, "<< takes an object or a list of objects")
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or object"
                self._say(
                    key, path, f"{shown or 'nothing'} is no field name; put it into quotes if it is meant as text"
                )
                continue
            if key.value in out:
                self._say(key, (*path, key.value), "appears twice in this object; remove one of the two")
                continue
            out[key.value], count = self._node(value, (*path, key.value))
            size += count
        return {**inherited, **out}, size

    def _scalar(self, node: yaml.Node, path: Loc) -> Any:
        text = str(node.value)
        kind = node.tag.rpartition(":")[2]
        if not node.tag.startswith("tag:yaml.org,2002:") or kind not in (
            "str",
            "int",
            "float",
            "bool",
            "null",
            "merge",
        ):
            self._say(node, path, f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not supported")
            return None
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int" if len(text) <= 40:
                    return int(text)
                case "float":
                    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                case "int":
                    self._say(node, path, "this number is too large")
                    return None
        except (KeyError, ValueError):
            self._say(node, path, f'"{text[:40]}" is no {kind}')
            return None
        return text
