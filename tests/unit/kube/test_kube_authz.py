"""Token and access reviews: what is asked, what is remembered and for how long, what no answer means."""

from __future__ import annotations

from typing import Any

import pytest

from defragd.errors import ClusterError, Forbidden
from defragd.kube.authz import KEPT, REVIEWS, TOKENS, Access, Caller, Reviews
from defragd.ports import Outcome, Written

APPROVE = Access("update", "g.example", "defragruns", "kube-system")
USER = {"username": "ann", "groups": ["ops"], "uid": "u1", "extra": {"scopes": ["a"]}}


class Server:
    """Stands in for the client: answers reviews from tables and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.users: dict[str, Any] = {"good": USER}
        self.allowed = True
        self.broken: Written | None = None

    def write(self, method: str, path: str, body: Any = None) -> Written:
        assert method == "POST"
        self.asked.append((path, body["spec"]))
        if self.broken is not None:
            return self.broken
        if path == TOKENS:
            user = self.users.get(body["spec"]["token"])
            return Written(Outcome.OK, body={"status": {"authenticated": user is not None, "user": user or {}}})
        return Written(Outcome.OK, body={"status": {"allowed": self.allowed}})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def tick() -> list[float]:
    return [100.0]


@pytest.fixture
def reviews(server: Server, tick: list[float]) -> Reviews:
    return Reviews(server, monotonic=lambda: tick[0])  # type: ignore[arg-type]


def test_the_question_carries_everything_the_api_server_said_of_the_user(reviews: Reviews, server: Server) -> None:
    caller = reviews.who("good")
    assert caller == Caller("ann", ("ops",), "u1", {"scopes": ["a"]})
    assert reviews.may(caller, APPROVE)
    assert server.asked[1] == (
        f"{REVIEWS}/subjectaccessreviews",
        {
            "user": "ann",
            "groups": ["ops"],
            "uid": "u1",
            "extra": {"scopes": ["a"]},
            "resourceAttributes": {
                "verb": "update", "group": "g.example", "resource": "defragruns", "namespace": "kube-system",
            },
        },
    )  # fmt: skip


def test_answers_are_remembered_for_a_while_and_no_longer(reviews: Reviews, server: Server, tick: list[float]) -> None:
    for _ in range(5):
        caller = reviews.who("good")
        assert caller is not None and reviews.may(caller, APPROVE)
    assert len(server.asked) == 2
    tick[0] += 29
    server.allowed, server.users = False, {}
    assert reviews.may(caller, APPROVE)
    tick[0] += 2
    assert not reviews.may(caller, APPROVE)
    assert reviews.who("good") is None
    tick[0] += 11
    server.allowed = True
    assert reviews.may(caller, APPROVE), "a denial is remembered for a shorter time"


def test_another_user_right_or_token_is_another_question(reviews: Reviews, server: Server) -> None:
    ann = reviews.who("good")
    assert ann is not None and reviews.may(ann, APPROVE)
    server.allowed = False
    assert not reviews.may(ann, Access("create", "g.example", "defragruns", "kube-system"))
    assert not reviews.may(ann, Access("update", "g.example", "defragruns", "other"))
    assert not reviews.may(Caller("ann", ("guests",), "u1", {"scopes": ["a"]}), APPROVE)
    assert not reviews.may(Caller("bob", ("ops",)), APPROVE)
    assert reviews.who("bad") is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [(Written(Outcome.UNKNOWN, "no answer in time"), ClusterError), (Written(Outcome.REFUSED, "no right"), Forbidden),
     (Written(Outcome.BLOCKED, "busy"), ClusterError)],
)  # fmt: skip
def test_no_answer_is_an_error_and_is_not_remembered(reviews: Reviews, server: Server, answer, error) -> None:
    server.broken = answer
    with pytest.raises(error, match=answer.message):
        reviews.who("good")
    server.broken = None
    assert reviews.who("good") is not None


def test_tokens_are_not_kept_and_the_memory_is_bounded(reviews: Reviews) -> None:
    reviews.who("good")
    assert "good" not in repr(reviews._kept)
    for number in range(KEPT + 50):
        reviews.who(f"bad-{number}")
    assert len(reviews._kept) == KEPT


def test_rights_read_as_people_write_them() -> None:
    assert str(Access("create", "", "pods/eviction")) == "create pods/eviction"
    assert str(APPROVE) == "update defragruns.g.example in kube-system"
    assert Access("create", "", "pods/eviction").attributes() == {
        "verb": "create", "resource": "pods", "subresource": "eviction",
    }  # fmt: skip
