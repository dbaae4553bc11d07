"""The table of actions is the service's own model, as AWS's SDK has it."""

from typing import Any

import botocore.session
import pytest

from posthouse.core.errors import REFUSALS
from posthouse.dialects.sqs.errors import CODES, KINDS
from posthouse.dialects.sqs.shapes import ACTIONS, Shape
from posthouse.dialects.sqs.web import HANDLERS
from tests.dialects.sqs.rig import SPEAKS_JSON

MODEL = botocore.session.get_session().get_service_model("sqs")
# Errors that nothing here can cause: nothing is encrypted with keys of KMS, every transport will
# do, and the two others were replaced by the service itself.
UNUSED = {
    "KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound",
    "KmsOptInRequired", "KmsThrottled", "InvalidAddress", "InvalidSecurity", "InvalidIdFormat",
    "MessageNotInflight",
}  # fmt: skip


CODES_OF_MODEL = {shape.metadata.get("error", {}).get("code") for shape in MODEL.error_shapes}
newer = pytest.mark.skipif(not SPEAKS_JSON, reason="the old model lacks what came later")


def members(kind: type[Shape] | None) -> set[str]:
    return set() if kind is None else set(kind.__struct_encode_fields__)


def members_in_model(shape: Any) -> set[str]:
    return set() if shape is None else set(shape.members)


def test_every_action_is_there_and_nothing_else() -> None:
    assert set(ACTIONS) == set(MODEL.operation_names) == set(HANDLERS)


@newer
@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_an_action_takes_and_gives_the_members_of_the_model(name: str) -> None:
    operation = MODEL.operation_model(name)
    assert members(ACTIONS[name].takes) == members_in_model(operation.input_shape)
    assert members(ACTIONS[name].gives) == members_in_model(operation.output_shape)


def test_an_error_has_the_names_of_the_model() -> None:
    """Only models of before the JSON protocol have the second name."""
    known = {each.name: each for each in KINDS}
    for shape in MODEL.error_shapes:
        if shape.name in UNUSED:
            assert shape.name not in known
            continue
        kind = known.pop(shape.name)
        error = shape.metadata.get("error", {})
        assert kind.code == error.get("code", kind.code), shape.name
    assert SPEAKS_JSON or "AWS.SimpleQueueService.NonExistentQueue" in CODES_OF_MODEL
    assert not SPEAKS_JSON or all("coral" in kind.space for kind in known.values()), known


def test_every_refusal_is_an_error() -> None:
    assert set(CODES) == set(REFUSALS)
    assert set(CODES.values()) <= set(KINDS)


def test_no_two_errors_have_a_name_in_common() -> None:
    def all_of(what: str) -> list[str]:
        return [getattr(each, what) for each in KINDS]

    assert len(set(all_of("name"))) == len(set(all_of("code"))) == len(KINDS)
