"""Whatever is sent to /mutate, the pod is allowed; a patch comes only from a decision."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defragd.web.webhook import create_webhook_app

PATCH = [{"op": "add", "path": "/metadata/annotations", "value": {"a": "ü"}}]


class Seen:
    def __init__(self, decide=lambda request: [], **options):
        self.requests: list = []
        self.events: list = []

        def wrapped(request):
            self.requests.append(request)
            return decide(request)

        app = create_webhook_app(wrapped, lambda event, fields: self.events.append((event, fields)), **options)
        self.client = app.test_client()

    def post(self, body, **more):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.client.post("/mutate", data=data, content_type="application/json", **more)
        assert answer.status_code == 200
        review = json.loads(answer.data)
        assert review["apiVersion"] == "admission.k8s.io/v1" and review["kind"] == "AdmissionReview"
        assert review["response"]["allowed"] is True
        return review["response"]


def review(uid="11-22", **more):
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": uid, **more}}


def test_a_decision_becomes_a_patch() -> None:
    seen = Seen(lambda request: PATCH)
    response = seen.post(review(object={"kind": "Pod"}, dryRun=True))
    assert response["uid"] == "11-22" and response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == PATCH
    assert seen.requests == [{"uid": "11-22", "object": {"kind": "Pod"}, "dryRun": True}]
    event, fields = seen.events[0]
    assert event == "webhook.request" and fields["decision"] == "patched" and 0 <= fields["seconds"] < 5


def test_no_operations_is_no_patch() -> None:
    seen = Seen()
    assert seen.post(review()) == {"uid": "11-22", "allowed": True}
    assert seen.events[0][1]["decision"] == "unchanged"


def test_an_exception_in_the_decision_is_allowed_and_counted_once() -> None:
    def broken(request):
        raise RuntimeError("boom")

    seen = Seen(broken)
    assert seen.post(review()) == {"uid": "11-22", "allowed": True}
    assert len(seen.events) == 1
    assert seen.events[0][1]["decision"] == "fault" and seen.events[0][1]["fault"] == "exception"
    assert "boom" in seen.events[0][1]["detail"]


@pytest.mark.parametrize("decide", [lambda r: [object()], lambda r: {1, 2}, lambda r: 7])
def test_a_decision_that_is_no_json_is_allowed(decide) -> None:
    seen = Seen(decide)
    response = seen.post(review())
    assert response == {"uid": "11-22", "allowed": True} and seen.events[0][1]["fault"] == "exception"


def test_a_body_that_is_too_large_is_allowed_with_its_uid_and_not_decided() -> None:
    seen = Seen(max_body=2000)
    response = seen.post(review(uid="big-1", object={"pad": "x" * 3000}))
    assert response == {"uid": "big-1", "allowed": True}
    assert seen.requests == [] and seen.events[0][1]["fault"] == "oversize"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"7", b'"x"', b"{}", b'{"request":null}', b'{"request":[]}', b"\xff\xfe", b"[" * 100_000,
        b'{"apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"a"}}',
        b'{"apiVersion":"admission.k8s.io/v1","request":{}}',
        b'{"apiVersion":"admission.k8s.io/v1","request":{"uid":""}}',
    ],
)  # fmt: skip
def test_nonsense_is_allowed_and_never_decided(body: bytes) -> None:
    seen = Seen()
    seen.post(body)
    assert seen.requests == [] and [f["fault"] for _, f in seen.events] == ["malformed"]


@given(st.one_of(st.binary(max_size=300), st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["request", "uid", "apiVersion", "kind", "object", "x"]), inner, max_size=5),
    max_leaves=12).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_any_body_is_allowed(body: bytes) -> None:
    Seen(lambda request: PATCH).post(body)


VALUES = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(st.dictionaries(st.sampled_from(["uid", "object", "oldObject", "namespace", "dryRun"]), VALUES))
def test_any_request_is_allowed(request) -> None:
    Seen(lambda r: r["object"]["metadata"]).post({"apiVersion": "admission.k8s.io/v1", "request": request})


def test_an_observer_that_raises_does_not_matter() -> None:
    def observer(event, fields):
        raise RuntimeError("disk full")

    client = create_webhook_app(lambda request: PATCH, observer).test_client()
    answer = client.post("/mutate", data=json.dumps(review()))
    assert answer.status_code == 200 and json.loads(answer.data)["response"]["patch"]


def test_nothing_else_is_served() -> None:
    client = Seen().client
    assert client.get("/mutate").status_code == 405 and client.get("/mutate").headers["Allow"] == "POST"
    assert client.get("/").status_code == 404 and client.post("/metrics").status_code == 404
