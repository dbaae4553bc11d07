"""Commands on topics, subscriptions and rules of a running broker."""

import argparse
from typing import Any

from posthouse.cli.client import Client
from posthouse.cli.codes import USAGE, fail
from posthouse.cli.remote import COUNTS, SUB, confirm, out, pages, remote, show
from posthouse.cli.show import size, table


def subscriptions(client: Client, topic: str) -> list[dict[str, Any]]:
    return list(pages(client, client.space("topics", topic, "subscriptions"), "subscriptions"))


# Topics.


@remote
def topic_ls(client: Client, options: argparse.Namespace) -> int:
    found = list(pages(client, client.space("topics"), "topics"))
    rows = [
        (each["name"], each["properties"]["status"], each["subscriptions"],
         each["counts"]["scheduled"], size(each["size_bytes"]))
        for each in found
    ]  # fmt: skip
    head = ("topic", "status", "subscriptions", "scheduled", "size")
    return out(options, found, table(rows, head))


@remote
def topic_create(client: Client, options: argparse.Namespace) -> int:
    info = client.ask("PUT", client.space("topics", options.topic), dict(options.set or ()))
    return out(options, info, f"Topic {options.topic} is there.")


@remote
def topic_show(client: Client, options: argparse.Namespace) -> int:
    return show(client, options, client.ask("GET", client.space("topics", options.topic)))


@remote
def topic_update(client: Client, options: argparse.Namespace) -> int:
    return _update(client, options, client.space("topics", options.topic))


def _update(client: Client, options: argparse.Namespace, where: str) -> int:
    if not options.set:
        return fail("Say what to change: --set NAME=VALUE.", USAGE)
    return show(client, options, client.ask("PATCH", where, dict(options.set)))


@remote
def topic_delete(client: Client, options: argparse.Namespace) -> int:
    where = client.space("topics", options.topic)
    client.ask("GET", where)  # a queue of that name is not meant
    confirm(options, f"Delete the topic {options.topic} with all its subscriptions?")
    client.ask("DELETE", where)
    return out(options, {"deleted": options.topic}, f"Topic {options.topic} is gone.")


# Subscriptions.


def _where(client: Client, options: argparse.Namespace, *more: str) -> str:
    return client.space("topics", options.topic, "subscriptions", options.subscription, *more)


@remote
def subscription_ls(client: Client, options: argparse.Namespace) -> int:
    found = subscriptions(client, options.topic)
    rows = [
        (each["name"].partition(SUB)[2], each["properties"]["status"], each["rules"],
         *(each["counts"][name] for name in COUNTS), size(each["size_bytes"]))
        for each in found
    ]  # fmt: skip
    head = ("subscription", "status", "rules", *COUNTS, "size")
    return out(options, found, table(rows, head))


@remote
def subscription_create(client: Client, options: argparse.Namespace) -> int:
    form: dict[str, Any] = dict(options.set or ())
    if options.sql is not None:
        form["rules"] = [{"name": "$Default", "filter": _sql(options.sql)}]
    info = client.ask("PUT", _where(client, options), form)
    text = f"Subscription {options.subscription} of {options.topic} is there."
    return out(options, info, text)


@remote
def subscription_show(client: Client, options: argparse.Namespace) -> int:
    return show(client, options, client.ask("GET", _where(client, options)))


@remote
def subscription_update(client: Client, options: argparse.Namespace) -> int:
    return _update(client, options, _where(client, options))


@remote
def subscription_delete(client: Client, options: argparse.Namespace) -> int:
    client.ask("GET", _where(client, options))
    confirm(
        options, f"Delete the subscription {options.subscription} of {options.topic} with all its"
        " messages?",
    )  # fmt: skip
    client.ask("DELETE", _where(client, options))
    text = f"Subscription {options.subscription} of {options.topic} is gone."
    return out(options, {"deleted": options.subscription}, text)


# Rules.


def _sql(expression: str) -> dict[str, str]:
    return {"kind": "sql", "expression": expression}


@remote
def rule_ls(client: Client, options: argparse.Namespace) -> int:
    found = list(pages(client, _where(client, options, "rules"), "rules"))
    rows = [(each["name"], _filter(each["filter"]), each["action"]) for each in found]
    return out(options, found, table(rows, ("rule", "filter", "action")))


def _filter(found: dict[str, Any]) -> str:
    """A filter in a line."""
    match found["kind"]:
        case "sql":
            return str(found["expression"])
        case "pattern":
            return f"{found['pattern']} ({found['style']})"
        case "correlation":
            given = {name: value for name, value in found.items() if name != "kind" and value}
            given |= given.pop("properties", {})
            return ", ".join(f"{name}={value}" for name, value in given.items())
        case _:
            return "everything" if found["kind"] == "true" else "nothing"


@remote
def rule_add(client: Client, options: argparse.Namespace) -> int:
    found: dict[str, Any] = {"kind": "true"}
    if options.sql is not None:
        found = _sql(options.sql)
    elif options.pattern is not None:
        found = {"kind": "pattern", "pattern": options.pattern, "style": options.style}
    elif options.equal or options.field:
        properties = dict(options.equal or ())
        found = {"kind": "correlation", **dict(options.field or ()), "properties": properties}
    form = {"filter": found, "action": options.action or ""}
    method = "PATCH" if options.replace else "PUT"
    client.ask(method, _where(client, options, "rules", options.rule), form)
    return out(options, {"rule": options.rule}, f"Rule {options.rule} is there.")


@remote
def rule_remove(client: Client, options: argparse.Namespace) -> int:
    client.ask("DELETE", _where(client, options, "rules", options.rule))
    return out(options, {"removed": options.rule}, f"Rule {options.rule} is gone.")
