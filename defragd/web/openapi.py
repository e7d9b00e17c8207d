"""The API's contract as OpenAPI 3.1, kept by hand; tests hold every route and every answer against it."""

from __future__ import annotations

from typing import Any

from defragd import __version__
from defragd.core.placement import Phase
from defragd.core.reasons import Reason
from defragd.core.run import MoveState, RunPhase

Json = dict[str, Any]

STRING: Json = {"type": "string"}
TEXT_OR_NULL: Json = {"type": ["string", "null"]}
TIME: Json = {"type": ["string", "null"], "format": "date-time"}
INT: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
BOOL: Json = {"type": "boolean"}
ANY: Json = {"type": "object", "additionalProperties": True}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def arrays(of: Json) -> Json:
    return {"type": "array", "items": of}


def record(description: str = "", /, **fields: Json) -> Json:
    """An object whose given fields are always there."""
    out: Json = {"type": "object", "properties": fields, "required": sorted(fields)}
    return {**out, "description": description} if description else out


def envelope(item: Json) -> Json:
    return record(items=arrays(item), nextPageToken=TEXT_OR_NULL, asOf=TIME)


def _schemas() -> Json:
    move = record(
        "One pod from a place to a proven place.",
        id=STRING,
        pod=STRING,
        **{"from": ref("Place")},
        to=ref("Place"),
        wave=INT,
        after=arrays(STRING),
        gain=NUMBER,
        cost=NUMBER,
        why=STRING,
    )
    fragmentation = record(
        "L (headline), phi with its causes, whole idle devices and nodes, copies per usual request shape.",
        L=NUMBER,
        phi=NUMBER,
        causes={"type": "object", "additionalProperties": NUMBER},
        idleDevices=INT,
        idleNodes=INT,
        idleGPUs=NUMBER,
        classes=arrays(record(shape=STRING, weight=NUMBER, fits=NUMBER, pooled=NUMBER)),
    )
    run: dict[str, Json] = {
        "id": STRING,
        "namespace": STRING,
        "policy": STRING,
        "strategy": STRING,
        "mode": {"type": "string", "enum": ["DryRun", "Approve", "Auto"]},
        "trigger": STRING,
        "phase": {"type": "string", "enum": [str(p) for p in RunPhase]},
        "desired": STRING,
        "desiredBy": STRING,
        "created": TIME,
        "scheduledFor": TIME,
        "started": TIME,
        "finished": TIME,
        "wave": INT,
        "moves": record(planned=INT, done=INT, failed=INT, refused=INT, inFlight=INT),
        "reason": STRING,
        "message": STRING,
    }
    run_move = record(
        id=STRING,
        state={"type": "string", "enum": [str(s) for s in MoveState]},
        placement=TEXT_OR_NULL,
        reason=STRING,
        message=STRING,
        started=TIME,
        finished=TIME,
    )
    return {
        "Problem": record(
            "RFC 9457 problem details; reason is a stable code.",
            type=STRING, title=STRING, status=INT, detail=STRING, instance=STRING, reason=STRING,
        ),
        "Reason": {"type": "string", "enum": sorted(str(r) for r in Reason), "description": "Closed list of reasons."},
        "Place": record(node=STRING, devices=arrays(STRING)),
        "Move": move,
        "Fragmentation": fragmentation,
        "Plan": record(
            id=STRING, created=TIME, policy=STRING, strategy=STRING, dryRun=BOOL,
            score={"anyOf": [record(name=STRING, before=NUMBER, after=NUMBER), {"type": "null"}]},
            freed=record(devices=INT, nodes=INT),
            moves=arrays(ref("Move")), waves=arrays(arrays(STRING)),
            refused=arrays(record(object=STRING, reason=STRING, detail=STRING)),
            stopped=STRING, elapsedSeconds=NUMBER,
        ),
        "Run": record(**run),
        "RunDetail": record(**run, plan={"anyOf": [ref("Plan"), {"type": "null"}]}, moveStates=arrays(run_move)),
        "Policy": record(
            name=STRING, source=STRING, digest=STRING, strategy=STRING, args=ANY, mode=STRING, schedule=STRING,
            timeZone=STRING, nextStarts=arrays(record(utc=TIME, local=STRING, allowed=BOOL, reason=STRING)),
            lastStart=TIME, lastRun=TEXT_OR_NULL, waiting=STRING, lastError=TEXT_OR_NULL, spec=ANY,
        ),
        "Placement": record(
            namespace=STRING, name=STRING, uid=STRING, reqID=STRING, created=TIME, open=BOOL,
            phase={"type": "string", "enum": [str(p) for p in Phase]},
            reason=STRING, message=STRING, nodeName=STRING, gpuDevices=arrays(STRING), devices=arrays(STRING),
            evictPod=TEXT_OR_NULL, suspend=BOOL, consumedAt=TIME, times=ANY,
            assignmentDetails=arrays(record(podName=STRING, podUID=STRING, gpuDevice=STRING, uuid=STRING)),
            conditions=arrays(
                record(type=STRING, status=STRING, reason=STRING, message=STRING, lastTransitionTime=TIME)
            ),
        ),
        "Device": record(
            uuid=STRING, node=STRING, index=INT, vendor=STRING, model=STRING, numa=INT, mode=STRING, state=STRING,
            health=record(healthy=BOOL, cordoned=BOOL, distrusted=STRING),
            capacity=record(slots=INT, memoryMiB=INT, cores=INT),
            usage=record(slots=INT, memoryMiB=INT, cores=INT),
            exclusive=BOOL, freeShare=NUMBER,
            holders=arrays(
                record(pod=TEXT_OR_NULL, placement=TEXT_OR_NULL, slots=INT, memoryMiB=INT, cores=INT, share=NUMBER)
            ),
        ),
        "Node": record(
            name=STRING, pool=STRING, ready=BOOL, schedulable=BOOL, state=STRING, pods=INT,
            devices=arrays(ref("Device")),
        ),
        "Summary": record(
            nodes=INT, idleNodes=INT, unreadyNodes=INT, devices=INT,
            devicesByState={"type": "object", "additionalProperties": INT},
            memoryMiB=INT, usedMemoryMiB=INT, idleDeviceEquivalents=NUMBER,
        ),
        "ClusterInfo": record(
            synced=BOOL, leader=TEXT_OR_NULL, asOf=record(time=TIME, ageSeconds=NUMBER),
            hami=record(version=STRING, shortcomings=arrays(STRING)),
            fragmentation={"anyOf": [ref("Fragmentation"), {"type": "null"}]},
            fragmentationByPool={"type": "object"}, summary=ref("Summary"),
            pools={"type": "object", "additionalProperties": ref("Summary")},
            pendingPods=INT, holds=arrays(record(placement=STRING, node=STRING, devices=arrays(STRING))),
            problems=arrays(record(object=STRING, reason=STRING, detail=STRING)), problemCount=INT,
            nodes=arrays(ref("Node")), nextPageToken=TEXT_OR_NULL,
        ),
        "Changes": record("Newest version of what the daemon sees.", version=INT, changed=BOOL, asOf=TIME),
        "Settings": record(settings=ANY, asOf=TIME),
        "Explanation": {**ANY, "description": "Why (not) movable, drainable, a target; fields depend on the kind."},
    }  # fmt: skip


def _path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": STRING}


def _query(name: str, text: str, schema: Json = STRING) -> Json:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


PAGING = [
    _query("limit", "Items per page.", {"type": "integer", "minimum": 1, "maximum": 1000}),
    _query("continue", "nextPageToken of the page before."),
]


def _answers(schema: Json, *codes: int, ok: str = "200", text: str = "") -> Json:
    out: Json = {ok: {"description": text or "OK", "content": {"application/json": {"schema": schema}}}}
    if ok == "200":
        out["304"] = {"description": "Not modified (If-None-Match)."}
    for code in codes:
        out[str(code)] = {"$ref": "#/components/responses/Problem"}
    return out


def _get(name: str, text: str, schema: Json, *codes: int, parameters: list[Json] | None = None) -> Json:
    operation: Json = {"operationId": name, "summary": text, "responses": _answers(schema, *codes, 500)}
    return {"get": {**operation, "parameters": parameters or []}}


def _post(name: str, text: str, parameters: list[Json], *, ok: str, answer: Json | None = None) -> Json:
    return {
        "post": {
            "operationId": name,
            "summary": text,
            "parameters": parameters,
            "security": [{"bearer": []}, {"token": []}],
            "requestBody": {"required": False, "content": {"application/json": {"schema": {"type": "object"}}}},
            "responses": _answers(
                answer or ref("RunDetail"), 400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 501, 502, 503, ok=ok
            ),
        }
    }


def _text(name: str, text: str, *codes: str) -> Json:
    answers = {code: {"description": "plain text", "content": {"text/plain": {"schema": STRING}}} for code in codes}
    return {"get": {"operationId": name, "summary": text, "responses": answers}}


def _paths() -> Json:
    v1, policy = "/api/v1", _query("policy", "Judge by this policy's rules.")
    only = [_query("policy", "Of this policy only."), _query("phase", "In this phase only.")]
    plan_page, run_page = envelope(ref("Plan")), envelope(ref("Run"))
    found = [_query("pool", "Of this pool only."), _query("q", "Name of a node, device or pod contains this.")]
    places = [_query("namespace", "Of this namespace only."), _query("phase", "In this phase only.")]
    number = {"type": "integer", "minimum": 0}
    waits = [
        _query("after", "Version already seen.", number),
        _query("timeout", "Seconds to wait, at most 25.", number),
    ]
    explain, one, faults = ref("Explanation"), [_path("name")], (400, 404, 501, 503)
    return {
        f"{v1}/cluster-info": _get("clusterInfo", "Nodes, devices, health, usage, fragmentation.", ref("ClusterInfo"),
                                   400, parameters=[*found, *PAGING]),
        f"{v1}/placements": _get("listPlacements", "Cache and assignment records.", envelope(ref("Placement")), 400,
                                 parameters=[*places, *PAGING])
        | _post("createPlacement", "Create a HamiPodPlacement (the object as for kubectl).", [], ok="201", answer=ANY),
        f"{v1}/placements/{{namespace}}/{{name}}": _get("getPlacement", "One placement.", ref("Placement"), 404,
                                                        parameters=[_path("namespace"), *one]),
        f"{v1}/policies": _get("listPolicies", "Policies, next starts, last errors.", envelope(ref("Policy")), 400,
                               parameters=PAGING),
        f"{v1}/policies/{{name}}": _get("getPolicy", "One policy.", ref("Policy"), 404, parameters=one),
        f"{v1}/policies/{{name}}:run": _post("runPolicy", "Plan now, in the policy's own mode.", one, ok="202"),
        f"{v1}/plans": _get("listPlans", "Plans, newest first.", plan_page, 400, parameters=[*only, *PAGING]),
        f"{v1}/plans/{{name}}": _get("getPlan", "One plan.", ref("Plan"), 404, parameters=one),
        f"{v1}/runs": _get("listRuns", "Runs, newest first.", run_page, 400, parameters=[*only, *PAGING]),
        f"{v1}/runs/{{name}}": _get("getRun", "One run with plan and moves.", ref("RunDetail"), 404, parameters=one),
        f"{v1}/runs/{{name}}:{{action}}": _post("steerRun", "approve, pause, resume or cancel.",
                                                [*one, _path("action")], ok="200"),
        f"{v1}/explain/pod/{{namespace}}/{{name}}": _get("explainPod", "Why (not) movable.", explain, *faults,
                                                         parameters=[_path("namespace"), *one, policy]),
        f"{v1}/explain/node/{{name}}": _get("explainNode", "Why (not) drainable or a target.", explain, *faults,
                                            parameters=[*one, policy]),
        f"{v1}/explain/device/{{uuid}}": _get("explainDevice", "What holds it, why (not) drainable.", explain, *faults,
                                              parameters=[_path("uuid"), policy]),
        f"{v1}/changes": _get("changes", "Waits for a version newer than after (long poll).", ref("Changes"), 400,
                              parameters=waits),
        f"{v1}/settings": _get("settings", "Effective configuration without secrets.", ref("Settings")),
        "/openapi.json": _get("openapi", "This document.", {"type": "object"}),
        "/livez": _text("livez", "Loops beat; ?verbose lists the checks.", "200", "503"),
        "/healthz": _text("healthz", "The older name of /livez.", "200", "503"),
        "/readyz": _text("readyz", "Caches synced, certificates loaded, webhook listening.", "200", "503"),
        "/metrics": _text("metrics", "Prometheus exposition.", "200", "501"),
    }  # fmt: skip


def document() -> Json:
    """The OpenAPI document; a new value each time."""
    problem = {"schema": ref("Problem")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "defragd",
            "version": __version__,
            "summary": "Defragments GPUs shared by HAMi.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "."}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "responses": {
                "Problem": {"description": "What is wrong.", "content": {"application/problem+json": problem}}
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Defragd-Token",
                    "description": "The same token where a proxy (kubectl proxy, a Service's proxy path) keeps "
                    "Authorization to itself.",
                },
            },
        },
    }
