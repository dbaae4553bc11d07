"""Move tasks: StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask."""

from posthouse.dialects.sqs.call import Call
from posthouse.dialects.sqs.errors import UNSUPPORTED, Failed
from posthouse.dialects.sqs.shapes import (
    CancelMessageMoveTask,
    CancelMessageMoveTaskResult,
    ListMessageMoveTasks,
    ListMessageMoveTasksResult,
    StartMessageMoveTask,
    StartMessageMoveTaskResult,
)

_TEXT = "Message move tasks are not served; resubmit dead letters with `posthouse dlq`."


async def start(call: Call, form: StartMessageMoveTask) -> StartMessageMoveTaskResult:
    raise Failed(UNSUPPORTED, _TEXT)


async def list_all(call: Call, form: ListMessageMoveTasks) -> ListMessageMoveTasksResult:
    raise Failed(UNSUPPORTED, _TEXT)


async def cancel(call: Call, form: CancelMessageMoveTask) -> CancelMessageMoveTaskResult:
    raise Failed(UNSUPPORTED, _TEXT)
