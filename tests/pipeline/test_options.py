"""What is decided before Spark has anything to do: options, schemas, parts of ranges."""

import io
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from posthouse.pipeline.bodies import from_json
from posthouse.pipeline.options import READING, WRITING, Options, Range
from posthouse.pipeline.sink import check_schema
from posthouse.pipeline.source import _parts, parts
from posthouse.pipeline.wire import FeedClient, PosthouseError
from tests.pipeline.asking import events, last
from tests.server.running import Running


def reading(**given: str) -> Options:
    return Options(given, READING)


@pytest.mark.parametrize(
    ("first", "end", "count", "sizes"),
    [(1, 11, 2, [5, 5]), (1, 11, 3, [3, 3, 4]), (7, 10, 5, [1, 1, 1]), (7, 8, 1, [1])],
)
def test_parts_are_equal_and_leave_nothing_out(
    first: int, end: int, count: int, sizes: list[int]
) -> None:
    made = parts(first, end, count)
    assert sorted(part.end - part.first for part in made) == sizes
    assert [position for part in made for position in range(part.first, part.end)] == list(
        range(first, end)
    )


@pytest.mark.parametrize(
    ("rows", "count"), [(0, 0), (1, 1), (300_000, 1), (1_000_003, 4), (10_000_000, 40)]
)
def test_where_nobody_says_how_many_parts_have_some_250_000_rows(rows: int, count: int) -> None:
    assert len(_parts(5, 5 + rows, 0)) == count


def test_options_do_not_mind_case_and_are_of_reading_or_writing() -> None:
    assert reading(MAXROWSPERBATCH="7").number("maxRowsPerBatch", 0) == 7
    assert reading(kinds=" sent, completed ,").words("kinds") == ("sent", "completed")
    with pytest.raises(PosthouseError, match="There is no option 'once'; there are url"):
        reading(once="true")
    with pytest.raises(PosthouseError, match="There is no option 'view'"):
        Options({"view": "events"}, WRITING)


def test_a_schema_is_of_a_view_and_its_columns() -> None:
    some = reading(columns="position, body", body="text").ddl()
    assert some == "`position` bigint NOT NULL, `body` string"
    assert "`kind`" not in reading().ddl()
    assert "`kind` string NOT NULL" in reading(view="Events").ddl()
    assert "`entity` string," in reading(view="events").ddl()  # some events are of none
    for given in ({"view": "events", "queue": "q"}, {"view": "messages"}):
        assert "`namespace` string NOT NULL, `entity` string NOT NULL" in reading(**given).ddl()
    for declared, made in (
        ("variant", "variant"),
        ("a double, b boolean", "struct<a double, b boolean>"),
    ):
        assert reading(typedProperties=declared).ddl().endswith(f", `typed_properties` {made}")
    made = reading(columns="body", body="json", bodySchema="id bigint").ddl()
    assert made == "`body` struct<id bigint>"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"view": "all"}, "The option view is one of messages, events, not 'all'"),
        ({"view": "lives"}, "Lives are made of the view events, with posthouse.pipeline.outcomes"),
        ({"body": "xml"}, "The option body is one of binary, text, json"),
        ({"body": "json"}, "body=json and bodySchema go together"),
        ({"bodySchema": "id bigint"}, "body=json and bodySchema go together"),
        ({"columns": "kind"}, "The view messages has no column 'kind'"),
        ({"columns": "typed_properties"}, "is there with the option typedProperties"),
    ],
)
def test_a_schema_that_cannot_be_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(PosthouseError, match=re.escape(told)):
        reading(**given).ddl()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"url": "amqp://localhost"}, "The option url is like http://127.0.0.1:5300"),
        ({"url": "localhost:5672"}, "The option url is like"),
        ({"retrySeconds": "-1"}, "The option retrySeconds is a whole number from 0, not '-1'"),
        ({"accessKeyName": "ann"}, "The options accessKeyName and accessKey go together"),
        ({"caFile": "/no/such.pem"}, "The option caFile names what cannot be read"),
    ],
)
def test_a_broker_that_cannot_be_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(PosthouseError, match=re.escape(told)):
        reading(**given).broker()


def test_a_key_is_not_shown() -> None:
    assert "hidden" not in repr(reading(accessKeyName="ann", accessKey="hidden").broker())


def test_a_broker_that_does_not_answer_is_told() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(PosthouseError, match=f"There is no answer from {url} after 0 s"):
            FeedClient(url, retry_seconds=0).get("/feed/status")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("body", BinaryType()), ("body", StringType()), ("body", MapType(StringType(), LongType())),
     ("properties", MapType(StringType(), LongType())), ("priority", IntegerType()),
     ("time_to_live_ms", LongType()), ("scheduled_time", TimestampType())],
)  # fmt: skip
def test_columns_of_a_right_type_are_taken(name: str, kind: DataType) -> None:
    body = [] if name == "body" else [StructField("body", BinaryType())]
    check_schema(StructType([*body, StructField(name, kind)]))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("id string", "A message has no column 'id'. It has body, "),
        ("subject string", "There is no column body"),
        ("body double", "The column body is double; it must be binary, string"),
        ("body string, message_id bigint", "The column message_id is bigint; it must be string"),
        ("body string, priority string", "The column priority is string; it must be a whole"),
        ("body string, properties string", "The column properties is string; it must be map"),
    ],
)
def test_columns_that_are_not_right_are_named(columns: str, told: str) -> None:
    kinds = {"string": StringType(), "bigint": LongType(), "double": DoubleType()}
    fields = [each.strip().split() for each in columns.split(",")]
    schema = StructType([StructField(a, kinds[b]) for a, b in fields])
    with pytest.raises(PosthouseError, match=re.escape(told)):
        check_schema(schema)


def test_json_that_does_not_fit_is_null_and_nothing_else_is() -> None:
    kind = pa.struct([
        ("id", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("on", pa.date32()),
        ("price", pa.decimal128(10, 2)), ("yes", pa.bool_()), ("raw", pa.binary()),
        ("tags", pa.map_(pa.string(), pa.list_(pa.float64()))),
    ])  # fmt: skip
    good = (
        b'{"id": 1, "at": "2026-01-02T03:04:05", "on": "2026-01-02", "price": 1.5, "yes": true,'
        b' "raw": "AP8=", "tags": {"a": [1, 2.5]}}'
    )
    odd = (
        b'{"id": 4294967296, "at": "soon", "on": 5, "price": 1e30, "yes": 1, "raw": "?",'
        b' "tags": {"a": 1, "b": [true]}}'
    )
    bodies = [good, odd, b'{"id": true}', b"[]", b"\xff", None]
    made = from_json(pa.array(bodies, pa.binary()), kind).to_pylist(maps_as_pydicts="strict")
    assert made[0] == {
        "id": 1, "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "on": datetime(2026, 1, 2, tzinfo=UTC).date(), "price": pytest.approx(1.5), "yes": True,
        "raw": b"\x00\xff", "tags": {"a": [1.0, 2.5]},
    }  # fmt: skip
    nothing = dict.fromkeys(("id", "at", "on", "price", "yes", "raw"))
    assert made[1] == {**nothing, "tags": {"a": None, "b": [None]}}
    assert made[2] == {**nothing, "tags": None}
    assert made[3:] == [None, None, None]


# With a broker.


def test_moments_are_found_among_positions(broker: Running) -> None:
    for number in range(10):
        broker.send("moments", str(number))
    every = events(broker)
    end = every[-1]["position"] + 1
    for each in (every[0], every[len(every) // 2], every[-1]):
        moment = datetime.fromtimestamp(each["time"] / 1000, UTC)
        found = FeedClient(broker.url).first_at(moment)
        assert found == min(row["position"] for row in every if row["time"] >= each["time"])
    later = datetime.now(UTC) + timedelta(days=1)
    assert FeedClient(broker.url).first_at(later) == end
    given = {"from": "2000-01-01", "to": later.isoformat()}
    assert reading(**given).range(FeedClient(broker.url)) == Range(1, last(broker) + 1)


@contextmanager
def cutting(port: int, cuts: list[int]) -> Iterator[int]:
    """A way to a broker that breaks after so many bytes of each of the first answers."""

    def serve() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                far.sendall(near.recv(1 << 16))
                left = cuts.pop(0) if cuts else 1 << 40
                while left and (data := far.recv(min(left, 1 << 16))):
                    near.sendall(data)
                    left -= len(data)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


@pytest.mark.parametrize("columns", [None, ["body"]])
def test_an_answer_that_is_cut_is_asked_for_again(
    broker: Running, columns: list[str] | None
) -> None:
    before = last(broker)
    broker.send("cut", *("x" * 500 for _ in range(500)))
    end = last(broker) + 1
    wanted = "" if columns is None else "&columns=position,body"
    answer = broker.call(
        "GET", f"/feed?after={before}&limit={end}{wanted}",
        headers={"accept": "application/vnd.apache.arrow.stream"},
    ).body  # fmt: skip
    assert pa.ipc.open_stream(io.BytesIO(answer)).read_all().num_rows == end - 1 - before
    cuts = [0, 300, len(answer) // 2, len(answer) - 10]
    with cutting(broker.port, cuts) as port:
        batches = FeedClient(f"http://127.0.0.1:{port}").rows(before + 1, end, columns)
        found = [position for each in batches for position in each.column("position").to_pylist()]
    assert found == list(range(before + 1, end))
    assert not cuts
