"""Refusals that every dialect has to tell alike."""

from posthouse.core.errors import NotLeader
from posthouse.dialects.pyqueue import refusals as pyqueue
from posthouse.dialects.servicebus import conditions
from posthouse.dialects.servicebus.localzure.errors import failed_by
from posthouse.dialects.servicebus.web import told as told_by_rest
from posthouse.dialects.vibemq import answers as vibemq
from posthouse.server import problems
from posthouse.store.errors import Deposed, Lost

LATER = (b"retry-after", b"1")


def test_a_broker_that_follows_is_unavailable_in_every_dialect_and_says_who_leads() -> None:
    refused = NotLeader("b.example:5672")
    condition, text, status = conditions.told(refused)
    assert (condition, status) == ("com.microsoft:server-busy", 503)  # clients try again
    told = [text, told_by_rest(refused).detail, failed_by(refused).text, vibemq.told(refused)[1]]
    told.append(pyqueue.told(refused, "PUSH", "orders"))
    assert all("b.example:5672" in each for each in told)
    assert told_by_rest(refused).status == failed_by(refused).status == 503
    assert LATER in told_by_rest(refused).headers
    assert LATER in failed_by(refused).headers
    assert vibemq.CODES[NotLeader] == ("SERVER_BUSY", 503)
    assert (problems.STATUS[NotLeader], NotLeader.code) == (503, "not-leader")


def test_clients_are_told_of_a_takeover_and_nothing_of_the_disk() -> None:
    condition, text = conditions.told_any(Deposed(7))
    assert condition == "amqp:internal-error"
    assert text.startswith("Another broker has taken over")
    _, text = conditions.told_any(Lost("[Errno 5] Input/output error: '/var/lib/posthouse'"))
    assert text.startswith("The journal has failed")
    assert "/var" not in text
