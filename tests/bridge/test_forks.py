"""A process that forks: parent and child each have a connection of their own."""

import subprocess
import sys
from pathlib import Path

from posthouse.pytest_plugin import Address

PROGRAM = """
import os, sys
from sqlalchemy import create_engine
from posthouse.bridge import Bridge, Event

engine = create_engine("sqlite:///forks.db")
api = Bridge({url!r}, app="api", destination="worker", database=engine)
api.sync.create_tables()
api.sync.publish("a.parent", {{}})
before = api.connection.loop_thread
child = os.fork()
if not child:
    try:
        assert not api.connection.is_open
        assert api.connection.loop_thread is not before
        api.sync.publish("a.child", {{}})
        with engine.begin() as connection:
            api.publish("a.row", {{}}, session=connection)
        with api.sync.relaying():
            api.connection.hands.run(api.storage.settle())
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
api.sync.publish("a.parent", {{}})
api.sync.close()
"""


def test_a_forked_child_connects_anew_and_leaves_its_parent_alone(
    posthouse_namespace: Address, tmp_path: Path
) -> None:
    program = PROGRAM.format(url=posthouse_namespace.client_url)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    messages = posthouse_namespace.ask("GET", "queues/api.sync.worker/messages?limit=10")
    kinds = sorted(each["body"].partition('"event_type":"')[2][:8] for each in messages["messages"])
    assert kinds == ['a.child"', "a.parent", "a.parent", 'a.row","']
