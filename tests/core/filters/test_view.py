"""What filters see of a message that was amended."""

from posthouse.core.filters.view import Amendment, MessageView
from posthouse.core.message import Envelope, encode_envelope
from tests.core.filters.views import numbered_ids, truth


def an_amended_view(amendment: Amendment) -> MessageView:
    envelope = Envelope(id="i", subject="old", properties={"a": 1, "b": 2})
    return MessageView(
        encode_envelope(envelope), new_id=numbered_ids(), ttl_ms=5, due_ms=6, amendment=amendment
    )


def test_an_amendment_sets_and_removes_properties() -> None:
    view = an_amended_view(Amendment({"a": 5, "c": 3}, ["b", "nowhere"], {}))
    assert truth("a = 5 AND c = 3 AND NOT EXISTS(b)", view) is True
    assert view.properties == {"a": 5, "c": 3}


def test_what_is_removed_and_set_is_set() -> None:
    assert truth("b = 7", an_amended_view(Amendment({"b": 7}, ["b"], {}))) is True


def test_an_amendment_changes_fields() -> None:
    view = an_amended_view(Amendment({}, [], {"subject": "new", "session_id": "s"}))
    assert truth("sys.Label = 'new' AND sys.SessionId = 's' AND sys.MessageId = 'i'", view) is True
    assert truth("sys.TimeToLive = 5", view) is True


def test_an_amendment_changes_times_before_anything_else_is_looked_at() -> None:
    view = an_amended_view(Amendment({}, [], {"ttl_ms": 70}))
    assert truth("sys.TimeToLive = 70 AND sys.ScheduledEnqueueTimeUtc IS NOT NULL", view) is True
    assert truth("a = 1", view) is True


def test_many_filters_look_at_one_view() -> None:
    view = an_amended_view(Amendment({"C": 3}, [], {}))
    for _ in range(2):
        assert truth("A = 1 AND c = 3 AND x IS NULL", view) is True
        assert truth("EXISTS(A) AND EXISTS(c) AND NOT EXISTS(x)", view) is True
