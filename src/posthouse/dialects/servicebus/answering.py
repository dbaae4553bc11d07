"""Service Bus over HTTP: from a request to who answers it, and to the answer."""

from posthouse.core.errors import Refused
from posthouse.dialects.http import Answer, HttpError, Request, charge
from posthouse.dialects.servicebus import admin, rest
from posthouse.dialects.servicebus.credentials import Credentials
from posthouse.dialects.servicebus.web import Call, error, path_of, principal_of, told


class Web:
    """Answers what is for Service Bus."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def answer(self, request: Request) -> Answer:
        try:
            path = path_of(request)
            principal = principal_of(self._credentials, request, path)
            charge(self._credentials.engine.throttle, request)
            call = Call(self._credentials, request, path, principal)
            route = rest.find(call) or admin.find(call)
            return await route(call)
        except HttpError as wrong:
            return error(wrong)
        except Refused as refused:
            return error(told(refused))
