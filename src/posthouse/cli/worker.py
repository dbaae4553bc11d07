"""Running a worker: finding it, and saying what came of it."""

import argparse
import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

from posthouse.cli import app_name
from posthouse.cli.app_name import Missing
from posthouse.cli.codes import FAILED, NOT_ALLOWED, NOT_FOUND, OK, USAGE, fail, say

if TYPE_CHECKING:
    from posthouse.client.worker import Worker


def worker(options: argparse.Namespace) -> int:
    from posthouse.server.log import set_up

    set_up("json" if options.json else "auto", "info", colour="NO_COLOR" not in os.environ)
    try:
        if options.reload:
            from posthouse.cli.reload import watch

            return watch(options)
        return _run(options)
    except Missing as error:
        return fail(str(error), error.code)


def _run(options: argparse.Namespace) -> int:
    from posthouse.client import errors

    app = find(options.app)
    if options.url is None and app.config is None and "POSTHOUSE_CLIENT_URL" not in os.environ:
        raise Missing(
            "No URL was given: give --url, or set POSTHOUSE_CLIENT_URL, to"
            " posthouse://NAME:KEY@HOST for a Posthouse broker, sb://NAME:KEY@HOST for Azure"
            " Service Bus or sqs://REGION for Amazon SQS.",
            USAGE,
        )
    try:
        is_drained = asyncio.run(app.run(options.url, concurrency=options.concurrency))
    except errors.QueueNotFound as error:
        return fail(str(error), NOT_FOUND)
    except (errors.PermissionDenied, errors.AuthenticationFailed) as error:
        return fail(str(error), NOT_ALLOWED)
    except (errors.ConfigurationError, errors.ValidationError) as error:
        return fail(str(error), USAGE)
    except errors.QueueError as error:
        return fail(str(error), FAILED)
    if options.json:
        queues = {
            queue: {
                each.outcome: {"count": each.count, "seconds": round(each.seconds, 3)}
                for each in figures.all()
            }
            for queue, figures in app.figures.items()
        }
        say(json.dumps({"drained": is_drained, "queues": queues}))
    if is_drained:
        return OK
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)  # without waiting for threads in which handlers still are


def find(target: str) -> "Worker":
    """Raises Missing."""
    from posthouse.client.worker import Worker

    return app_name.find(target, Worker, "posthouse.Worker")
