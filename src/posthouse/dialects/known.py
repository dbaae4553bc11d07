"""The dialects that are spoken here. To add one, write its declaration and name it in this list."""

from typing import Any

from posthouse.dialects.dialect import Dialect
from posthouse.dialects.pyqueue.declaration import declaration as pyqueue
from posthouse.dialects.servicebus.declaration import declaration as servicebus
from posthouse.dialects.sqs.declaration import declaration as sqs
from posthouse.dialects.vibemq.declaration import declaration as vibemq

# Their settings, ports and lines in the welcome text are shown in this order.
DIALECTS: tuple[Dialect[Any, Any], ...] = (servicebus, pyqueue, vibemq, sqs)
