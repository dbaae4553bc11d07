"""Where Spark cannot be had, it is told in a sentence what to do."""

import sys
from importlib import import_module

import pytest

from posthouse.pipeline import NoSpark, session
from tests.pipeline.elsewhere import free_port

room = import_module("posthouse.pipeline.session")  # the package has a function of that name


def test_a_connect_server_that_is_not_there_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ANSWER_SECONDS", 0.2)
    port = free_port()
    with pytest.raises(NoSpark, match=rf"^No Spark Connect server answers at 127.0.0.1:{port}\.$"):
        session(f"sc://127.0.0.1:{port}")


@pytest.mark.parametrize("where", ["sc://", "sc://host:port", "sc://host:1/;user"])
def test_where_no_connect_server_can_be_is_told(where: str) -> None:
    with pytest.raises(NoSpark, match=r"^This is not where a Spark Connect server could be: "):
        session(where)


def test_what_connect_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(NoSpark, match=r"pip install 'posthouse\[spark-connect\]'$"):
        session("sc://127.0.0.1")
