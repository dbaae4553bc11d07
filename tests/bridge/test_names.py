"""Names: the subjects of the seed, and what a name must not have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.bridge.errors import ConfigurationError
from posthouse.bridge.names import Names, check_subject, deliver_subject


def test_the_names_of_a_pair_are_those_of_the_seed() -> None:
    api = Names("api", ("worker",))
    assert api.subject_to("worker") == "api.sync.worker"
    assert api.subject_from("worker") == "worker.sync.api"
    assert api.dead_letters == "api.sync.dlq"
    assert api.consumer("worker") == api.group == "api-workers"
    assert deliver_subject(api.source("worker")) == "worker.sync.api.worker"


def test_a_pair_needs_both_subjects_and_both_dead_letters() -> None:
    wanted = Names("api", ("worker",)).topology("shop", both_sides=True)
    assert list(wanted.subjects) == [
        "api.sync.worker", "worker.sync.api", "api.sync.dlq", "worker.sync.dlq",
    ]  # fmt: skip
    assert {(each.consumer, each.subject) for each in wanted.sources} == {
        ("api-workers", "worker.sync.api"), ("worker-workers", "api.sync.worker"),
    }  # fmt: skip
    assert (wanted.retention, wanted.max_deliver) == ("workqueue", -1)


def test_each_of_several_destinations_has_a_consumer_of_its_own() -> None:
    wanted = Names("api", ("worker", "mail")).topology("shop")
    assert [(each.consumer, each.subject) for each in wanted.sources] == [
        ("api-worker-workers", "worker.sync.api"), ("api-mail-workers", "mail.sync.api"),
    ]  # fmt: skip


def test_topics_have_a_subject_for_each_type_and_keep_events_for_all() -> None:
    names = Names("api", ("worker",), topics=True)
    assert names.subject_to("", "order.created") == "api.events.order.created"
    assert names.subject_from("worker") == "worker.events.>"
    wanted = names.topology("shop")
    assert wanted.retention == "interest"
    assert list(wanted.subjects) == [
        "api.events.>", "worker.events.>", "api.sync.dlq", "worker.sync.dlq",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="nothing between two dots"):
        names.subject_to("", "order..created")


@pytest.mark.parametrize(
    ("name", "sign"),
    [("a.b", "'.'"), ("a*", r"'\*'"), (">", "'>'"), ("a b", "' '"), ("a\tb", r"'\\t'"),
     ("a\x7f", r"'\\x7f'"), ("a/b", "'/'"), ("a\xa0b", r"'\\xa0'")],
)  # fmt: skip
def test_the_character_that_a_name_must_not_have_is_told(name: str, sign: str) -> None:
    with pytest.raises(ConfigurationError, match=f"has {sign} at character"):
        Names(name, ("worker",))


@pytest.mark.parametrize(
    ("app", "others", "why"),
    [("", ("b",), "one character or more"), ("a" * 256, ("b",), "255 are the most"),
     ("a" * 130, ("b" * 130,), "255 are the most"), ("a", ("dlq",), "subject of dead letters"),
     ("a", ("a",), "its own destination"), ("a", ("b", "b"), "twice")],
)  # fmt: skip
def test_names_that_cannot_be_are_refused(app: str, others: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Names(app, others)


@pytest.mark.parametrize(
    ("subject", "why"),
    [("*.sync.b", "begins with a wildcard"), (">", "begins with a wildcard"), ("a.>.b", "has '>'"),
     ("$JS.API", r"begins with \$"), ("a..b", "nothing between"), ("a.b*", r"has '\*'")],
)  # fmt: skip
def test_a_subject_that_a_stream_must_not_have_is_refused(subject: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        check_subject(subject, wildcards=True)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_names_are_four_subjects_or_refused(app: str, other: str) -> None:
    try:
        names = Names(app, (other,))
    except ConfigurationError:
        return
    for subject in names.topology("s").subjects:
        tokens = subject.split(".")
        assert len(tokens) == 3
        assert tokens[1] == "sync"
        assert not set(subject) & set("*> \t\r\n")
