"""The OpenAPI document of the API, and the page that shows it."""

from functools import cache
from typing import Any

import msgspec

from posthouse.dialects.http import HTML, JSON, SCRIPT, Answer
from posthouse.dialects.servicebus.localzure import forms
from posthouse.dialects.servicebus.localzure.errors import Failed

_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>LocalZure's API on Posthouse</title>
<link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><div id="page"></div>
<script src="/docs/swagger-ui-bundle.js"></script><script src="/servicebus/docs/start.js"></script>
</body></html>
"""
_START = b"""SwaggerUIBundle({url: "/servicebus/docs/openapi.json", dom_id: "#page"});
"""

Q, T = "/servicebus/queues/{queue}", "/servicebus/topics/{topic}"
S = T + "/subscriptions/{subscription}"
_XML = "xml"

# Method, path, what it is for, what it takes.
PATHS: list[tuple[str, str, str, type[msgspec.Struct] | str | None]] = [
    ("get", "/servicebus/health", "How the broker is", None),
    ("get", "/servicebus/health/ready", "Whether it is ready", None),
    ("get", "/servicebus/health/live", "Whether it is alive", None),
    ("get", "/servicebus/metrics", "Figures for Prometheus", None),
    ("get", "/servicebus/queues", "Queues, as an Atom feed", None),
    ("get", "/servicebus/topics", "Topics, as an Atom feed", None),
    ("post", "/servicebus/transactions", "Begin a transaction", forms.BeginForm),
    ("post", "/servicebus/transactions/{transaction}/commit", "Commit it", None),
    ("post", "/servicebus/transactions/{transaction}/rollback", "Roll it back", None),
    *[(method, path, f"{word} {what}", _XML if method == "put" else None)
      for path, what in ((Q, "a queue"), (T, "a topic"), (S, "a subscription"),
                         (S + "/rules/{rule}", "a rule"))
      for method, word in (("get", "Show"), ("put", "Create or change"), ("delete", "Delete"))],
    ("get", T + "/subscriptions", "Subscriptions, as an Atom feed", None),
    ("get", S + "/rules", "Rules, as an Atom feed", None),
    ("post", Q + "/messages", "Send a message", forms.SendForm),
    ("post", Q + "/messages/batch", "Send several, all or none", forms.BatchForm),
    ("post", T + "/messages", "Publish a message", forms.SendForm),
    ("post", T + "/messages/batch", "Publish several, all or none", forms.BatchForm),
    ("delete", Q + "/messages/scheduled/{sequence}", "Cancel a scheduled message", None),
    *[(method, place + path, text, form)
      for place in (Q, S, Q + "/$DeadLetterQueue", S + "/$DeadLetterQueue")
      for method, path, text, form in (
          ("post", "/messages/head", "Receive one, or with maxMessages peek", None),
          ("delete", "/messages/head", "Receive one and delete it", None),
          ("post", "/messages/receive", "Receive messages", forms.ReceiveForm),
          ("post", "/messages/deferred", "Receive deferred messages", forms.DeferredForm),
          ("post", "/messages/complete", "Complete a message", forms.SettleForm),
          ("post", "/messages/abandon", "Abandon a message", forms.SettleForm),
          ("post", "/messages/deadletter", "Dead-letter a message", forms.SettleForm),
          ("post", "/messages/defer", "Defer a message", forms.SettleForm),
          ("post", "/messages/renewlock", "Renew a lock", forms.SettleForm),
          ("delete", "/messages/{message}/{lock}", "Complete a message", None),
          ("put", "/messages/{message}/{lock}", "Abandon a message", None),
          ("post", "/messages/{message}/{lock}", "Renew a lock", None),
          ("put", "/messages/{message}/{lock}/abandon", "Abandon a message", None),
          ("put", "/messages/{message}/{lock}/deadletter", "Dead-letter a message", None),
          ("put", "/messages/{message}/{lock}/defer", "Defer a message", None),
          ("post", "/messages/{message}/{lock}/renewlock", "Renew a lock", None),
      )],
    *[(method, place + path, text, form)
      for place in (Q, S)
      for method, path, text, form in (
          ("post", "/sessions/accept", "Hold a session, or the next one", forms.AcceptForm),
          ("delete", "/sessions/{session}", "Let go of a session", None),
          ("post", "/sessions/{session}/renewlock", "Hold it longer", None),
          ("get", "/sessions/{session}/state", "Its state", None),
          ("put", "/sessions/{session}/state", "Set its state", "bytes"),
      )],
]  # fmt: skip


def answer(rest: list[str]) -> Answer:
    """Raises Failed."""
    match rest:
        case []:
            return Answer(_PAGE, 200, (HTML,))
        case ["start.js"]:
            return Answer(_START, 200, (SCRIPT,))
        case ["openapi.json"]:
            return Answer(msgspec.json.encode(document()), 200, (JSON,))
        case _:
            raise Failed(404, "EntityNotFound", "There are docs and docs/openapi.json.")


@cache
def document() -> dict[str, Any]:
    kinds = [form for _, _, _, form in PATHS if isinstance(form, type)]
    schemas, components = msgspec.json.schema_components(
        dict.fromkeys(kinds), ref_template="#/components/schemas/{name}"
    )
    by_kind = dict(zip(dict.fromkeys(kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for method, path, text, form in PATHS:
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        said: dict[str, Any] = {
            "summary": text,
            "operationId": f"{method}{path}".replace("/", "_").replace("{", "").replace("}", ""),
            "parameters": [
                {"name": name, "in": "path", "required": True,
                 "schema": {"type": "string", "minLength": 1}}
                for name in names
            ],
            "responses": {"default": {"description": "As LocalZure's documents say"}},
        }  # fmt: skip
        if form is not None:
            kind, schema = _content(form, by_kind)
            said["requestBody"] = {"content": {kind: {"schema": schema}}, "required": False}
        paths.setdefault(path, {})[method] = said
    return {
        "openapi": "3.1.0",
        "info": {"title": "LocalZure's API on Posthouse", "version": "1"},
        "paths": paths,
        "components": {"schemas": components},
    }


def _content(form: type[msgspec.Struct] | str, by_kind: dict[Any, Any]) -> tuple[str, Any]:
    if form == _XML:
        return "application/xml", {"type": "string"}
    if isinstance(form, str):
        return "application/octet-stream", {"type": "string"}
    return "application/json", by_kind[form]
