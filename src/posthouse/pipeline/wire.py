"""Asking a broker over HTTP, from wherever Spark runs.

Code of this folder that runs on a cluster is pickled by value. It needs PySpark and PyArrow there,
and no other package of Posthouse.
"""

import base64
import http.client
import io
import json
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT_SECONDS = 60
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 2.0
BUFFER_BYTES = 1 << 20
IDLE_ROWS_MAX = 1_000  # that are looked at, whether there is more than acknowledgements among them
LIMIT_MAX = 100_000_000  # of positions that a broker looks at for one answer
COUNT_LIMIT_MAX = 5_000_000  # of positions whose rows are counted for one answer


DATA_LOSS = (
    "Begin at a later position, or set the option failOnDataLoss to false to go on without what is"
    " gone. A named reader (the option reader) keeps what it has not read."
)


class PosthouseError(Exception):
    """An error, with what went wrong and what to do."""


class Unanswered(PosthouseError):
    """No answer came: it is not known whether the request was done."""


class NotFound(PosthouseError):
    """The requested object does not exist."""


class Gone(PosthouseError):
    """The positions are not kept any more."""


class NotAllowed(PosthouseError):
    """The key is none, or has not the right."""


class Duplicate(PosthouseError):
    """The object exists already."""


@dataclass(frozen=True)
class FeedClient:
    """An HTTP client of the feed. For a while it retries failures that may pass."""

    url: str
    name: str | None = None
    key: str | None = field(default=None, repr=False)
    authority: str | None = field(default=None, repr=False)  # certificates to trust, in PEM
    retry_seconds: float = 60
    authority_file: str | None = None  # where they were read from

    def options(self) -> dict[str, str]:
        """The options of this client, as they are given to Spark."""
        said = {
            "url": self.url, "accessKeyName": self.name, "accessKey": self.key,
            "caFile": self.authority_file, "retrySeconds": f"{self.retry_seconds:g}",
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    def get(self, path: str) -> Any:
        """Gets a JSON answer. Raises PosthouseError."""
        return self._patiently("GET", path)

    def status(self, **query: str) -> Any:
        """The first and last position of the feed, or of a part of it. Raises PosthouseError."""
        return self.get(f"/feed/status?{urlencode(query)}")

    def first_at(self, moment: datetime, **query: str) -> int:
        """The first position of that time or later. Raises PosthouseError."""
        since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        ms = max(0, -(-since // timedelta(milliseconds=1)))
        return int(self.status(time=str(ms), **query)["at"])

    def post(self, path: str, content: Any) -> Any:
        """Posts a request that may be repeated. Raises PosthouseError."""
        return self._patiently("POST", path, json.dumps(content).encode())

    def post_once(self, path: str, content: Any) -> Any:
        """Posts a request that must not be done twice. Raises Unanswered, or PosthouseError."""
        return self._patiently("POST", path, json.dumps(content).encode(), once=True)

    def acknowledge(self, reader: str, position: int) -> None:
        """A named reader has read so far; what is behind that is kept for it."""
        said = json.dumps({"position": position}).encode()
        self._patiently("PUT", f"/api/v1/readers/{quote(reader, safe='')}", said)

    def acknowledged(self, reader: str) -> int | None:
        """The position up to which a named reader has read. Raises PosthouseError."""
        known = self.get("/api/v1/readers")["readers"]
        return next((int(each["position"]) for each in known if each["name"] == reader), None)

    def is_idle(self, first: int, end: int) -> bool:
        """Whether nothing happened there but acknowledgements, which need not be acknowledged.

        Raises PosthouseError.
        """
        if end - first > IDLE_ROWS_MAX:
            return False
        kinds = self.rows(first, end, ["kind"])
        return all(
            each == "reader-set" for some in kinds for each in some.column("kind").to_pylist()
        )

    def find(self, path: str) -> Any | None:
        """Gets a JSON answer, or None where there is no such thing. Raises PosthouseError."""
        try:
            return self.get(path)
        except NotFound:
            return None

    def rows(
        self, first: int, end: int, columns: Sequence[str] | None, **query: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the positions from the first on, and before the end. Raises PosthouseError.

        Where a connection breaks, it goes on after the rows it has.
        """
        if columns is not None:
            query["columns"] = ",".join(dict.fromkeys(("position", *columns)))
        patience = _Patience(self)
        while first < end:
            try:
                before = first - 1
                asked = {"after": before, "limit": min(end - first, LIMIT_MAX), **query}
                with self._ask("GET", f"/feed?{urlencode(asked)}", ARROW) as answer:
                    behind = int(answer.headers["posthouse-next"]) + 1
                    stream = pa.ipc.open_stream(io.BufferedReader(answer, BUFFER_BYTES))
                    for batch in stream:
                        if batch.num_rows:
                            yield batch
                            first = batch.column("position")[-1].as_py() + 1
                            patience = _Patience(self)
                if behind - 1 <= before:
                    raise self._ended(behind - 1, end)
                first = behind
            except (OSError, http.client.HTTPException, pa.ArrowInvalid, _Busy) as error:
                patience.wait(error)

    def reach(self, first: int, end: int, rows: int, **query: str) -> tuple[int, int]:
        """The position behind so many matching rows from the first on, and how many there are.

        Where there are fewer, it is the end. Raises PosthouseError.
        """
        found = 0
        while first < end and found < rows:
            asked = {"after": first - 1, "limit": min(end - first, COUNT_LIMIT_MAX)}
            said = self.get(f"/feed/count?{urlencode({**asked, 'rows': rows - found, **query})}")
            if int(said["next"]) < first:
                raise self._ended(int(said["next"]), end)
            found += int(said["rows"])
            first = int(said["next"]) + 1
        return first, found

    def _ended(self, last: int, end: int) -> PosthouseError:
        return PosthouseError(
            f"The feed of {self.url} ends at position {last}, before {end - 1}: it is not the"
            " broker that it was."
        )

    def _patiently(
        self, method: str, path: str, body: bytes | None = None, *, once: bool = False
    ) -> Any:
        patience = _Patience(self)
        while True:
            try:
                with self._ask(method, path, "application/json", body) as answer:
                    return json.loads(answer.read() or b"null")
            except ConnectionRefusedError as error:  # there is nobody who could have done it
                patience.wait(error)
            except (OSError, http.client.HTTPException, _Busy) as error:
                if once and not isinstance(error, _Busy):
                    raise Unanswered(f"There was no answer from {self.url}: {error!r}.") from error
                patience.wait(error)

    def _ask(
        self, method: str, path: str, accept: str, body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """Raises PosthouseError, OSError, HTTPException or _Busy."""
        where = urlsplit(self.url)
        host, port = where.hostname or "localhost", where.port
        connection: http.client.HTTPConnection
        if where.scheme == "https":
            context = ssl.create_default_context(cadata=self.authority)
            connection = http.client.HTTPSConnection(
                host, port, timeout=TIMEOUT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        headers = {"accept": accept, "connection": "close"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self.key is not None:
            given = base64.b64encode(f"{self.name}:{self.key}".encode()).decode()
            headers["authorization"] = f"Basic {given}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()  # with it the connection is closed
        except BaseException:
            connection.close()
            raise
        if answer.status < 300:
            return answer
        with answer:
            raise self._refused(answer)

    def _refused(self, answer: http.client.HTTPResponse) -> Exception:
        try:
            problem = json.loads(answer.read(1 << 16))
            name, detail = str(problem.get("type")), str(problem.get("detail"))
        except (ValueError, AttributeError):
            name, detail = "", answer.reason
        match answer.status:
            case 401 | 403:
                return NotAllowed(
                    f"{self.url} does not let {self.name or 'who gives no key'} in: {detail} Give"
                    " the options accessKeyName and accessKey; reading takes the right to listen,"
                    " writing that to send."
                )
            case 404:
                return NotFound(f"{self.url} says: {detail}")
            case 409 if name == "urn:posthouse:problem:duplicate":
                return Duplicate(detail)
            case 410:
                return Gone(
                    f"What was to be read is gone, retention has overtaken the reader: {detail}"
                    f" {DATA_LOSS}"
                )
            case 429 | 503:
                return _Busy(detail)
            case _:
                return PosthouseError(f"{self.url} says: {detail}")


class _Busy(Exception):
    """The request is to be tried again."""


class _Patience:
    """Waits between tries, each time longer, until it has been long enough."""

    def __init__(self, broker: FeedClient) -> None:
        self._broker = broker
        self._end = time.monotonic() + broker.retry_seconds
        self._pause = PAUSE_SECONDS

    def wait(self, error: Exception) -> None:
        """Raises PosthouseError."""
        if isinstance(error, ssl.SSLCertVerificationError):
            raise PosthouseError(
                f"The certificate of {self._broker.url} is not trusted: {error.verify_message}."
                " Name the file of its authority with the option caFile."
            ) from error
        if time.monotonic() + self._pause > self._end:
            raise PosthouseError(
                f"There is no answer from {self._broker.url} after"
                f" {self._broker.retry_seconds:g} s: {error!r}. Is the broker running, and is the"
                " option url right?"
            ) from error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
