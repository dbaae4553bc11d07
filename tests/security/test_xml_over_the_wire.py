"""XML of administration clients, as it comes over HTTP: refused, quickly, and nothing is fetched.

What the reader takes and refuses is in tests/dialects/servicebus/test_xml.py.
"""

import socket
from collections.abc import Iterator

import pytest

from tests.dialects.servicebus.rest import Rest, entry
from tests.server.running import Running, development

PATH = "/made?api-version=2021-05"
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
PLAIN = entry("QueueDescription")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("xml")) as broker:
        yield broker


def documents(port: int) -> dict[str, bytes]:
    outside = f"http://127.0.0.1:{port}/x"
    return {
        "billion laughs": f'<!DOCTYPE e [<!ENTITY l0 "ha">{LAUGHS}]><e>&l9;</e>'.encode(),
        "quadratic": f'<!DOCTYPE e [<!ENTITY a "{"x" * 50_000}">]><e>{"&a;" * 5_000}</e>'.encode(),
        "external": f'<!DOCTYPE e [<!ENTITY a SYSTEM "{outside}">]><e>&a;</e>'.encode(),
        "external DTD": f'<!DOCTYPE e SYSTEM "{outside}"><e/>'.encode(),
        "parameter": f'<!DOCTYPE e [<!ENTITY % a SYSTEM "{outside}">%a;]><e/>'.encode(),
        "a file": b'<!DOCTYPE e [<!ENTITY a SYSTEM "file:///etc/passwd">]><e>&a;</e>',
        "deep": b"<e>" * 50_000 + b"</e>" * 50_000,
        "wide": b"<e>" + b"<a/>" * 100_000 + b"</e>",
        "large": b"<e>" + b"x" * (2 << 20) + b"</e>",
        "UTF-16": b"\xff\xfe" + f'<!DOCTYPE e [<!ENTITY a "x">]>{PLAIN}'.encode("utf-16-le"),
        "UTF-7": b'<?xml version="1.0" encoding="utf-7"?>+ADwAIQ-DOCTYPE e>',
        "attributes": b"<e " + b" ".join(b"a%d='x'" % n for n in range(20_000)) + b"/>",
    }


def test_hostile_documents_are_refused_and_cost_little(broker: Running) -> None:
    rest = Rest(broker.port)
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.1)
        before = broker.cpu_seconds
        for name, data in documents(elsewhere.getsockname()[1]).items():
            answer = rest("PUT", PATH, data)
            assert 400 <= answer.status < 500, (name, answer)
            assert b"root:" not in answer.body
        assert broker.cpu_seconds - before < 5
        with pytest.raises(TimeoutError):
            elsewhere.accept()
    assert rest("GET", PATH).status == 404
    assert rest("PUT", PATH, PLAIN).status == 201
