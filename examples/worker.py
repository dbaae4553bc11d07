"""A worker that handles a shop's orders, on a broker in memory so that it runs as it is.

    posthouse worker examples.worker:app

sends itself a few orders; Ctrl-C stops it. With `--url posthouse://...` it works for a broker.
"""

import logging

from posthouse import CallNext, Context, FixedRetry, Message, ReceivedMessage, Reject, Worker

log = logging.getLogger("shop")
app = Worker("memory://?auto_create=true", retry=FixedRetry(attempts=3, wait=0.1))


@app.on_start
async def send_some() -> None:
    for order in (b"a book", b"a pen", b"a fault", b""):
        await app.client.send_message("orders", Message(order))


@app.middleware
async def logged(context: Context, call_next: CallNext) -> None:
    await call_next(context)
    log.info("Order %s is done, attempt %d.", context.message.message_id, context.attempt)


@app.handler("orders", concurrency=5)
async def on_order(message: ReceivedMessage, context: Context) -> None:
    if not message.body:
        raise Reject("empty", "An order says what is ordered.")
    if message.body == b"a fault" and context.attempt == 1:
        raise ValueError("the shelf was locked")  # it is tried again
    await context.client.send_message("invoices", Message(b"for " + message.body))


@app.handler("invoices")
def on_invoice(message: ReceivedMessage) -> None:
    log.info("Invoice %s.", message.body.decode())


@app.handler("orders", dead_letter=True)
async def on_dead_order(message: ReceivedMessage) -> None:
    log.warning("Nobody can handle %s: %s.", message.message_id, message.dead_letter_reason)
