"""What a start need not wait for is imported a moment later, not by the first who asks for it."""

from collections.abc import Iterator

import pytest

from posthouse.dialects.known import DIALECTS
from tests.dialects.servicebus.sas import token
from tests.server.running import Running, running
from tests.waiting import until

WARM = {"posthouse.server.api", *(module for dialect in DIALECTS for module in dialect.warm)}
ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription'
    b' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content>'
    b"</entry>"
)


def imported(broker: Running) -> set[str]:
    """The modules of ours that the broker has imported so far, as its interpreter tells them."""
    lines = [str(each["message"]) for each in broker.log if each["event"] == "not JSON"]
    names = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    return {name for name in names if name.startswith("posthouse.")}


@pytest.fixture
def broker() -> Iterator[Running]:
    with running("--memory", "--dev", environment={"PYTHONPROFILEIMPORTTIME": "1"}) as broker:
        yield broker


def test_the_first_administration_request_imports_nothing(broker: Running) -> None:
    until(lambda: imported(broker) >= WARM, "everything is imported")
    before = imported(broker)
    assert broker.queue("PUT", "ours", {}).status == 201
    path, signed = "/service-bus", {"authorization": token("http://localhost/")}
    headers = {**signed, "host": "localhost", "content-type": "application/atom+xml"}
    assert broker.call("PUT", path, raw=ENTRY, headers=headers).status == 201
    assert broker.call("PUT", "/servicebus/queues/localzure").status == 201
    assert broker.stop() == 0
    assert imported(broker) == before
