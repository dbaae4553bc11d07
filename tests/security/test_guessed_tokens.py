"""Who may listen to a queue cannot settle what another has locked there."""

from pathlib import Path

from tests.server.running import Running, running

NUMBER = (1 << 64) - 1  # the half of a token that counts up


def principal(broker: Running, root: str, name: str) -> str:
    grants = [{"namespace": "default", "entity": "orders", "rights": ["listen"]}]
    made = broker.call("POST", "/api/v1/principals", {"name": name, "grants": grants}, key=root)
    return f"{name}:{made.json['key']}"


def guesses(seen: int) -> list[int]:
    """Tokens near one that was seen: the next number under the same and under other halves."""
    upper, number = seen >> 64, seen & NUMBER
    near = [number + step for step in range(-3, 4) if step]
    return [half << 64 | each for half in (upper, 0, upper + 1, upper - 1) for each in near]


def test_a_token_next_to_one_that_was_seen_settles_nothing(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data")) as broker:
        root = f"RootManageSharedAccessKey:{(tmp_path / 'data/root-key').read_text().strip()}"
        broker.queue("PUT", "orders", {}, key=root)
        messages = [{"body": f"{number}"} for number in range(4)]
        broker.queue("POST", "orders/messages", {"messages": messages}, key=root)
        ann, bob = principal(broker, root, "ann"), principal(broker, root, "bob")
        before = broker.queue("POST", "orders/receive", {}, key=bob).json["messages"][0]
        held = broker.queue("POST", "orders/receive", {}, key=ann).json["messages"][0]
        for token in guesses(int(before["token"], 16)):
            form = {"locks": [f"{token & (1 << 128) - 1:032x}"]}
            assert broker.queue("POST", "orders/complete", form, key=bob).status == 410
            assert broker.queue("POST", "orders/renew", form, key=bob).status == 410
        done = broker.queue("POST", "orders/complete", {"locks": [held["token"]]}, key=ann)
        assert done.status == 200
