"""Each scenario once, on one cluster after the other things that happened to it.

`make torture-cluster` plays them many times at random, and tells the longest time without an
acknowledgement.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.cluster.machines import SERVER
from tests.cluster.network import need_namespaces
from tests.cluster.playing import Cluster
from tests.cluster.scenarios import SCENARIOS

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(SERVER is None, reason="there is no nats-server here"),
]
log = logging.getLogger(__name__)


class Clusters:
    """The cluster that is played on; a new one where a scenario has left the last one broken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._cluster: Cluster | None = None

    def play(self, name: str) -> None:
        cluster = self._cluster
        if cluster is None:
            self._made += 1
            cluster = Cluster(self._folder / str(self._made), Random(self._made))
            asyncio.run(cluster.open())
        self._cluster = None
        try:
            gap = asyncio.run(cluster.play(name))
        except BaseException:
            log.warning("%s", cluster.tell())
            cluster.close()
            raise
        self._cluster = cluster
        log.info("%s: %.2f s without an acknowledgement", name, gap)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    need_namespaces()
    made = Clusters(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_acknowledged_is_lost_and_all_nodes_agree(clusters: Clusters, name: str) -> None:
    clusters.play(name)
