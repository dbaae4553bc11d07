"""Amazon SQS: boto3 beside Moto's server, and raw HTTP beside a bare uvicorn application.

    python -m bench.sqs [boto3] [raw] [polls]

boto3: eight threads, each with a client of its own, one message at a time and in batches of ten,
against a durable broker and against Moto's server in memory; and what boto3 itself costs a call,
with a server that answers at once. raw: send, receive and delete over 32 connections, unsigned and
signed, beside the bare application of `bench.http`. polls: the time from a send to the answer of a
long poll, beside the same over our own API. Without a word, all three.
"""

import argparse
import asyncio
import hashlib
import hmac
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import uvloop
from botocore.config import Config

from bench.http import KIND, QUEUE, Api, between, both, load, request
from bench.start import POSTHOUSE, a_free_port

THREADS, SECONDS, ROUNDS, RAW_ROUNDS, POLLS = 8, 4.0, 3, 9, 300
MOTO_GOAL, RAW_GOAL, SIGNED_GOAL, BATCH_GOAL, POLL_GOAL = 10.0, 0.5, 0.4, 5.0, 1.5
TEXT = "x" * 1_024
REGION = "eu-central-1"


def verdict(reached: bool) -> str:
    return "reached" if reached else "MISSED"


# boto3.


def client(port: int) -> Any:
    config = Config(retries={"max_attempts": 0}, max_pool_connections=1)
    return boto3.client(
        "sqs", endpoint_url=f"http://127.0.0.1:{port}", region_name=REGION,
        aws_access_key_id="test", aws_secret_access_key="test", config=config,
    )  # fmt: skip


def each_second(port: int, make: Callable[[Any, str], Callable[[], int]]) -> float:
    """What all threads together do in a second."""

    def work(_: int) -> int:
        mine = client(port)
        step = make(mine, mine.create_queue(QueueName="bench")["QueueUrl"])
        done, end = 0, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            done += step()
        return done

    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(work, range(THREADS))) / SECONDS


def single(sqs: Any, url: str) -> Callable[[], int]:
    def step() -> int:
        sqs.send_message(QueueUrl=url, MessageBody=TEXT)
        for message in sqs.receive_message(QueueUrl=url).get("Messages", []):
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return 3

    return step


def batch(sqs: Any, url: str) -> Callable[[], int]:
    entries = [{"Id": str(n), "MessageBody": TEXT} for n in range(10)]

    def step() -> int:
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
        return 10

    return step


def send(sqs: Any, url: str) -> Callable[[], int]:
    def step() -> int:
        sqs.send_message(QueueUrl=url, MessageBody=TEXT)
        return 1

    return step


@contextmanager
def moto() -> Iterator[int]:
    port = a_free_port()
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not answers(port, "GET", "/moto-api/data.json"):
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def answers(port: int, method: str, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with suppress(OSError):
        connection.request(method, path)
        return connection.getresponse().status == 200
    return False


def by_boto3() -> None:
    found: dict[str, list[float]] = {"single": [], "batch": []}
    for _ in range(ROUNDS):
        with both() as (port, _), moto() as other:
            ours, theirs = each_second(port, single), each_second(other, single)
            many, one = each_second(port, batch), each_second(port, send)
        found["single"].append(ours / theirs)
        found["batch"].append(many / one)
        print(f"  boto3: {ours:,.0f} operations a second, Moto {theirs:,.0f};"
              f" {many:,.0f} messages in batches, {one:,.0f} singly", flush=True)  # fmt: skip
    for name, goal in (("single", MOTO_GOAL), ("batch", BATCH_GOAL)):
        times = statistics.median(found[name])
        beside = "Moto's server" if name == "single" else "single sends"
        print(f"boto3, {THREADS} threads, {name}: {times:.1f} times {beside}; goal {goal:g}"
              f" {verdict(times >= goal)}")  # fmt: skip
    with both() as (_, bare):
        sqs = client(bare)
        begun = time.process_time()
        for _ in range(500):
            sqs.tag_queue(QueueUrl="q", Tags={"a": "b"})  # an action without an answer
        print(f"boto3 itself: {(time.process_time() - begun) / 500 * 1e3:.2f} ms of CPU a call")


# Raw HTTP.


def action(name: str, form: bytes, *headers: str, path: str = "/") -> bytes:
    return request(
        "POST", path, form, f"x-amz-target: AmazonSQS.{name}",
        "content-type: application/x-amz-json-1.0", *headers,
    )  # fmt: skip


SEND = json.dumps({"QueueUrl": "q", "MessageBody": TEXT}).encode()
RECEIVE = b'{"QueueUrl":"q"}'


def delete_form(body: bytes) -> bytes:
    handle = between(body, b'"ReceiptHandle":"', b'"')
    return b'{"QueueUrl":"q","ReceiptHandle":"%s"}' % handle


UNSIGNED = Api(
    "unsigned", action("SendMessage", SEND), action("ReceiveMessage", RECEIVE),
    lambda _, body: action("DeleteMessage", delete_form(body)),
    action("DeleteMessage", RECEIVE),
)  # fmt: skip
# The bare application tells by the path what is to be as long as a message.
BARE = UNSIGNED._replace(receive=action("ReceiveMessage", RECEIVE, path="/receive"))


class Signer:
    """Signs requests for one moment, which holds for fifteen minutes."""

    def __init__(self, id: str, key: str) -> None:
        self._moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        day = self._moment[:8]
        self._scope = f"{day}/{REGION}/sqs/aws4_request"
        self._id = id
        signing = f"AWS4{key}".encode()
        for part in (day, REGION, "sqs", "aws4_request"):
            signing = hmac.digest(signing, part.encode(), "sha256")
        self._key = signing

    def action(self, name: str, form: bytes) -> bytes:
        target = f"AmazonSQS.{name}"
        names = "host;x-amz-date;x-amz-target"
        canonical = (
            f"POST\n/\n\nhost:localhost\nx-amz-date:{self._moment}\nx-amz-target:{target}\n\n"
            f"{names}\n{hashlib.sha256(form).hexdigest()}"
        )
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self._moment}\n{self._scope}\n{digest}"
        signature = hmac.digest(self._key, text.encode(), "sha256").hex()
        return action(
            name, form, f"x-amz-date: {self._moment}",
            f"authorization: AWS4-HMAC-SHA256 Credential={self._id}/{self._scope},"
            f" SignedHeaders={names}, Signature={signature}",
        )  # fmt: skip

    def api(self) -> Api:
        return Api(
            "signed", self.action("SendMessage", SEND), self.action("ReceiveMessage", RECEIVE),
            lambda _, body: self.action("DeleteMessage", delete_form(body)), b"",
        )  # fmt: skip


@contextmanager
def locked() -> Iterator[tuple[int, Api]]:
    """A broker that checks signatures."""
    folder, port = Path(tempfile.mkdtemp(dir=".")), a_free_port()
    command = [POSTHOUSE, "serve", "--data", str(folder / "data"), "--insecure", "--auto-create",
               "--port", str(port), "--log-level", "error"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while not answers(port, "GET", "/health/ready"):
                time.sleep(0.1)
            key = (folder / "data" / "root-key").read_text().strip()
            yield port, Signer("RootManageSharedAccessKey", key).api()
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(folder)


def by_hand() -> None:
    found: dict[str, list[float]] = {"unsigned": [], "signed": []}
    for _ in range(RAW_ROUNDS):
        with both() as (port, bare_port):
            bare = uvloop.run(load(bare_port, BARE, bare=True))
            ours = uvloop.run(load(port, UNSIGNED, bare=False))
        with locked() as (port, api):
            signed = uvloop.run(load(port, api, bare=False))
        found["unsigned"].append(ours / bare)
        found["signed"].append(signed / bare)
        print(f"  raw: {ours:,.0f} and, signed, {signed:,.0f} against {bare:,.0f} requests a"
              " second", flush=True)  # fmt: skip
    for name, goal in (("unsigned", RAW_GOAL), ("signed", SIGNED_GOAL)):
        part = statistics.median(found[name])
        print(f"raw HTTP, send, receive and delete, {name}: {part:.0%} of the bare application in"
              f" the middle of {RAW_ROUNDS}; goal {goal:.0%} {verdict(part >= goal)}")  # fmt: skip


# Long polls.


async def answered(port: int, poll: bytes, sent: bytes, settle: Callable[[bytes], bytes]) -> float:
    """The seconds from a send to the answer of a poll that waits, in the middle."""

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: bytes) -> bytes:
        writer.write(what)
        return await read(reader)

    async def read(reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 20"), head
        length = int(between(head + b"\r\n", b"content-length: ", b"\r\n") or 0)
        return await reader.readexactly(length)

    waiter = await asyncio.open_connection("127.0.0.1", port)
    sender = await asyncio.open_connection("127.0.0.1", port)
    times = []
    for _ in range(POLLS):
        waiter[1].write(poll)
        await asyncio.sleep(0.005)
        begun = time.perf_counter()
        sender[1].write(sent)
        body = await read(waiter[0])
        times.append(time.perf_counter() - begun)
        await read(sender[0])
        await ask(*sender, settle(body))
    return statistics.median(times)


def polls() -> None:
    own = request(
        "POST", f"{QUEUE}/messages", json.dumps({"messages": [{"body": TEXT}]}).encode(), KIND
    )
    complete = f"{QUEUE}/complete"

    def settle(body: bytes) -> bytes:
        lock = between(body, b'"token":"', b'"')
        return request("POST", complete, b'{"locks":["%s"]}' % lock, KIND)

    found = []
    for _ in range(ROUNDS):
        with both() as (port, _):
            ours = uvloop.run(answered(
                port, request("POST", f"{QUEUE}/receive", b'{"wait_ms":5000}', KIND), own, settle
            ))  # fmt: skip
            sqs = uvloop.run(answered(
                port, action("ReceiveMessage", b'{"QueueUrl":"q","WaitTimeSeconds":5}'),
                UNSIGNED.send, lambda body: action("DeleteMessage", delete_form(body)),
            ))  # fmt: skip
        found.append(sqs / ours)
        print(f"  a long poll: {sqs * 1e3:.2f} ms, our own API {ours * 1e3:.2f} ms", flush=True)
    times = statistics.median(found)
    print(f"a long poll that is answered, p50: {times:.2f} times our own API's; goal at most"
          f" {POLL_GOAL:g} {verdict(times <= POLL_GOAL)}")  # fmt: skip


PARTS = {"boto3": by_boto3, "raw": by_hand, "polls": polls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", metavar="PART")
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    for part in parser.parse_args().parts or PARTS:
        if part not in PARTS:
            parser.error(f"{part!r} is none of {', '.join(PARTS)}")
        PARTS[part]()


if __name__ == "__main__":
    main()
