"""The machines of a cluster, as cluster.yaml and the environment name them."""

from pathlib import Path

import pytest

from posthouse.server.cluster_plan import Machine, Plan, parse_machines, plan_of, read_plan, written
from posthouse.server.config import BadConfig


def test_machines_on_hosts_of_their_own_have_the_usual_ports() -> None:
    assert parse_machines(["a=h1", "b=h2:25672", "c=[::1]:7"]) == (
        Machine("a", "h1"),
        Machine("b", "h2", port=25672),
        Machine("c", "::1", port=7),
    )


def test_machines_that_share_a_host_have_ports_of_their_own() -> None:
    _, b, c = parse_machines(["a=localhost", "b=localhost", "c=localhost:9"])
    assert b == Machine("b", "localhost", 5673, 4223, 6223, 8223)
    assert c == Machine("c", "localhost", 9, 4224, 6224, 8224)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a"], "NODE=HOST"),
        (["=h1"], "NODE=HOST"),
        (["a=h1", "b=h2"], "1, 3 or 5 nodes, not 2"),
        (["a=h1", "a=h2", "c=h3"], "both have node a"),
        (["a=h1:7", "b=h1:7", "c=h3"], "both have h1:7"),
        (["a.b=h1"], "letters, digits"),
        (["a=h 1"], "a host name or an address"),
        (["a=h1:70000"], "from 1 to 65535"),
        (["a=h1:x"], "from 1 to 65535"),
    ],
)
def test_what_is_no_machine_is_named(words: list[str], text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        parse_machines(words)


def test_a_plan_that_was_written_is_read_back(tmp_path: Path) -> None:
    secret = tmp_path / "cluster.secret"
    secret.write_bytes(b"s" * 64 + b"\n")
    plan = Plan("shop", parse_machines(["a=h1", "b=[::1]:7", "c=h3"]), secret)
    (tmp_path / "cluster.yaml").write_text(written(plan, secret.name))
    found = read_plan(tmp_path / "cluster.yaml")
    assert found == plan
    assert found.read_secret() == b"s" * 64


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "is not YAML"),
        ("- a", "may hold"),
        ("colour: red", "may hold"),
        ("cluster: 'a b'", "cluster must be"),
        ("cluster: x\nnodes: [a]", "nodes must be"),
        ("cluster: x\nnodes: {a: h1}", "secret must name"),
        ("cluster: x\nnodes: {a: 5}\nsecret: s", "must have a host"),
        ("cluster: x\nnodes: {a: {host: h, colour: 1}}\nsecret: s", "may have"),
        ("cluster: x\nnodes: {a: h1}\nsecret: s\nsettings: 5", "settings must be"),
        ("cluster: x\nnodes: {a: h1}\nsecret: s\nsettings: {keeep: 7d}", "cannot have 'keeep'"),
        ("cluster: x\nnodes: {a: h1}\nsecret: s\nsettings: {store: x}", "cannot have 'store'"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(BadConfig, match=told):
        read_plan(tmp_path / "cluster.yaml")


def test_a_secret_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    plan = Plan("shop", parse_machines(["a=h1"]), tmp_path / "secret")
    with pytest.raises(BadConfig, match="copy it from the machine"):
        plan.read_secret()
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(BadConfig, match="fewer than 32"):
        plan.read_secret()


def test_the_environment_names_the_peers_of_a_container() -> None:
    assert plan_of({}) is None
    named = {"POSTHOUSE_PEERS": "a=a, b=b,c=c", "POSTHOUSE_CLUSTER_SECRET_FILE": "/run/s"}
    plan = plan_of(named)
    assert plan is not None
    assert plan.cluster == "posthouse"
    assert [machine.url for machine in plan.machines] == ["a:5672", "b:5672", "c:5672"]
    assert plan.secret == Path("/run/s")
    with pytest.raises(BadConfig, match="POSTHOUSE_CLUSTER_SECRET_FILE"):
        plan_of({"POSTHOUSE_PEERS": "a=a"})
    with pytest.raises(BadConfig, match="POSTHOUSE_CLUSTER must"):
        plan_of({**named, "POSTHOUSE_CLUSTER": "a.b"})
    with pytest.raises(BadConfig, match="There is no node 'x'"):
        plan.machine("x")
