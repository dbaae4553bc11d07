"""The daemon that starts Spark's Python workers on this machine: its own, but for one thing.

A worker that has nothing more to do when Spark ends finds its socket closed. Over TCP it does not
notice; over a Unix socket it does, and would tell of it with a traceback, after all went well.
"""

import socket

from pyspark import daemon

_work = daemon.worker


def _work_quietly(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _work(sock, authenticated)
    except BrokenPipeError:
        return 1  # nobody is there who could be told; the worker ends


if __name__ == "__main__":
    daemon.worker = _work_quietly
    daemon.manager()
