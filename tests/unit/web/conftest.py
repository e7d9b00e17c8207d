"""Templates are compiled once for all applications of a test run, not once per application."""

from __future__ import annotations

import pytest
from flask import Flask
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket


class Compiled(BytecodeCache):
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self.kept:
            bucket.bytecode_from_string(self.kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.kept[bucket.key] = bucket.bytecode_to_string()


@pytest.fixture(scope="session", autouse=True)
def compiled_once():
    before = Flask.jinja_options
    Flask.jinja_options = {**before, "bytecode_cache": Compiled()}
    yield
    Flask.jinja_options = before
