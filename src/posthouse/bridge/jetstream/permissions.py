"""Exactly what a user of NATS must be allowed, as subjects and as the block of a server's file."""

from collections.abc import Sequence
from dataclasses import dataclass

from posthouse.bridge.names import EVENTS, Names, deliver_subject

WAKES = "_posthouse.wake"


@dataclass(frozen=True, slots=True)
class Permissions:
    """The subjects that a user may publish to, and subscribe to."""

    publish: Sequence[str]
    subscribe: Sequence[str]

    def text(self, user: str) -> str:
        """Returns the user as it is in the `users` of a server's file, with a password to set."""
        return (
            "{\n"
            f'  user: "{user}", password: "CHANGE-ME"\n'
            "  permissions: {\n"
            f"    publish: {{ allow: [{_listed(self.publish)}] }}\n"
            f"    subscribe: {{ allow: [{_listed(self.subscribe)}] }}\n"
            "  }\n"
            "}\n"
        )


def _listed(subjects: Sequence[str]) -> str:
    return "".join(f'\n      "{subject}"' for subject in subjects) + "\n    "


def permissions(
    names: Names,
    stream: str,
    *,
    push: bool = False,
    provision: bool = False,
    operate: bool = False,
    inbox: str = "_INBOX",
) -> Permissions:
    """Returns what a service needs: to publish, to consume, to bury, and to be woken.

    With `provision` also what it needs to make streams and consumers; with `operate` what looks at
    dead letters, replays and drops them, and tells the health.
    """
    if names.topics:
        publish = [f"{names.app}.{EVENTS}.>"]
    else:
        publish = [names.subject_to(each) for each in names.destinations]
    publish += [names.dead_letters, f"{WAKES}.{names.app}.*"]
    subscribe = [f"{inbox}.>", f"{WAKES}.{names.app}.*"]
    for destination in names.destinations:
        source = names.source(destination, push=push)
        publish.append(f"$JS.ACK.{stream}.{source.consumer}.>")
        if push:
            publish.append(f"$JS.FC.{stream}.{source.consumer}.>")
            subscribe.append(f"{deliver_subject(source)} {source.consumer}")
        else:
            publish.append(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{source.consumer}")
        if operate:
            publish.append(names.subject_from(destination))  # where dead letters are replayed to
        if provision or operate:
            publish.append(f"$JS.API.CONSUMER.INFO.{stream}.{source.consumer}")
        if provision:
            publish.append(f"$JS.API.CONSUMER.CREATE.{stream}.{source.consumer}.>")
    if provision or operate:
        publish.append(f"$JS.API.STREAM.INFO.{stream}")
    if provision:
        publish += [
            f"$JS.API.STREAM.CREATE.{stream}", f"$JS.API.STREAM.UPDATE.{stream}",
            "$JS.API.STREAM.LIST",
        ]  # fmt: skip
    if operate:
        publish += [f"$JS.API.STREAM.MSG.GET.{stream}", f"$JS.API.STREAM.MSG.DELETE.{stream}"]
    return Permissions(tuple(dict.fromkeys(publish)), tuple(subscribe))
