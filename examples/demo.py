"""A shop's traffic, archived and reported on: what Posthouse and Spark do together, in a minute.

    make demo

Starts a broker in a folder of its own, lets a minute of its clock pass with orders, events and
mails through three dialects (the Azure SDK over AMQP, LocalZure's API, Posthouse's own), with
consumers that fail now and then; brings all of it into a lake, and prints the report. The lake and
the report stay in a folder (posthouse-demo, or the one that is named); the next run replaces them.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from posthouse.cli import main as posthouse

POSTHOUSE = str(Path(sys.executable).with_name("posthouse"))
SECONDS = 60  # of the broker's clock
REGIONS = ("north", "south", "east", "west")
FAULTS = (
    ("PaymentDeclined", "CardError: card {n} was declined by the issuer"),
    ("ValidationError", "ValueError: amount -{n}.50 is below 0 in order {n}"),
    ("UpstreamTimeout", "TimeoutError: no answer from ledger-{m}.internal after 30 s"),
)


class Shop:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._random = random.Random(5)
        self._orders = 0
        self._until_close = ExitStack()
        self._client = ServiceBusClient.from_connection_string(
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._url + path, None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"}, method=method,
        )  # fmt: skip
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or b"null")

    def own(self, method: str, path: str, body: Any = None) -> Any:
        return self.ask(method, f"/api/v1/namespaces/default/{path}", body)

    def open(self) -> None:
        self.own("PUT", "queues/orders", {"lock_ms": 5_000, "max_delivery": 3})
        self.own("PUT", "queues/mails", {"ttl_ms": 8_000})
        self.own("PUT", "topics/order-events", {})
        for name in ("billing", "shipping"):
            self.own("PUT", f"topics/order-events/subscriptions/{name}", {})
        self.own("POST", "clock", {"frozen": True})
        client = self._until_close.enter_context(self._client)
        self._sender = self._until_close.enter_context(client.get_queue_sender("orders"))
        self._consumer = self._until_close.enter_context(
            client.get_queue_receiver("orders", prefetch_count=20)
        )
        delete = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        self._billing = self._until_close.enter_context(
            client.get_subscription_receiver("order-events", "billing", receive_mode=delete)
        )

    def close(self) -> None:
        self._until_close.close()

    def pass_a_second(self, second: int) -> None:
        busy = 25 + int(20 * abs(second - 30) / 30)
        self._send_orders(busy)
        self._publish(busy)
        self._mail(busy // 3)
        self._process_orders()
        self._billing.receive_messages(max_message_count=200, max_wait_time=0.05)
        self._ship()
        self.own("POST", "clock", {"advance_ms": 1_000})

    def _order(self) -> dict[str, Any]:
        self._orders += 1
        return {
            "id": self._orders, "region": self._random.choice(REGIONS),
            "amount": self._random.randint(5, 900),
        }  # fmt: skip

    def _send_orders(self, count: int) -> None:
        batch = self._sender.create_message_batch()
        for _ in range(count):
            order = self._order()
            message = ServiceBusMessage(json.dumps(order), message_id=f"order-{order['id']}")
            message.application_properties = {"region": order["region"]}
            batch.add_message(message)
        self._sender.send_messages(batch)

    def _publish(self, count: int) -> None:
        messages = [{"body": json.dumps(self._order()), "subject": "paid"} for _ in range(count)]
        self.own("POST", "queues/order-events/messages", {"messages": messages})

    def _mail(self, count: int) -> None:
        messages = [{"body": f"Thank you for order {n}", "label": "mail"} for n in range(count)]
        self.ask("POST", "/servicebus/queues/mails/messages/batch", {"messages": messages})
        if self._random.random() < 0.6:  # else nobody reads them in time
            form = {"max_count": count, "receive_mode": "ReceiveAndDelete"}
            self.ask("POST", "/servicebus/queues/mails/messages/receive", form)

    def _process_orders(self) -> None:
        for message in self._consumer.receive_messages(max_message_count=40, max_wait_time=0.05):
            lot = self._random.random()
            if lot < 0.03:
                reason, text = self._random.choice(FAULTS)
                number = self._random.randint(100, 999)
                self._consumer.dead_letter_message(
                    message, reason=reason,
                    error_description=text.format(n=number, m=number % 3),
                )  # fmt: skip
            elif lot < 0.10:
                self._consumer.abandon_message(message)
            else:
                self._consumer.complete_message(message)

    def _ship(self) -> None:
        shipping = "queues/order-events%2F$sub%2Fshipping"
        found = self.own("POST", f"{shipping}/receive", {"limit": 30})["messages"]
        done = [each["token"] for each in found if self._random.random() < 0.97]
        if done:
            self.own("POST", f"{shipping}/complete", {"locks": done})


def serve(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A broker of its own, and its port."""
    command = [POSTHOUSE, "serve", "--dev", "--data", str(folder), "--port", "0", "--log", "json"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        event = json.loads(line)
        if event["event"] == "broker.ready":
            return process, event["ports"][0]
    raise SystemExit("The broker did not start.")


def main() -> None:
    begun = time.monotonic()
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "posthouse-demo").absolute()
    lake = out / "lake"
    if (lake / "manifests").exists():  # of an earlier run, and so of another broker
        shutil.rmtree(lake)
    with tempfile.TemporaryDirectory() as folder:
        broker, port = serve(Path(folder) / "data")
        try:
            shop = Shop(port)
            shop.open()
            for second in range(SECONDS):
                shop.pass_a_second(second)
                print(
                    f"\r{second + 1} of {SECONDS} seconds of the shop's clock", end="", flush=True
                )
            shop.close()
            print("\nInto the lake, and a report of it:")
            url, there = f"http://127.0.0.1:{port}", ["--lake", str(lake)]
            posthouse(["pipeline", "archive", *there, "--url", url])
            posthouse(["pipeline", "report", *there, "--window", "1", "--out", str(out)])
        finally:
            broker.terminate()
            broker.communicate()
    print(
        f"The lake is {lake}. To see its dead letters: posthouse pipeline triage --lake {lake}\n"
        f"It took {time.monotonic() - begun:.0f} s."
    )


if __name__ == "__main__":
    main()
