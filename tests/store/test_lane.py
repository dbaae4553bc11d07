"""The lane: its messages, what counts of them, and how a writer goes on after trouble."""

import pytest

from posthouse.store.errors import Spoilt
from posthouse.store.frames import Frame
from posthouse.store.lane import (
    FENCE,
    LOOK_SECONDS,
    MARK,
    PART,
    PARTS_MAX,
    SILENCE_SECONDS,
    UNDER_WAY_MAX,
    Entry,
    Look,
    Publish,
    Reading,
    Writing,
    decode,
    encode,
)

ALONE = 7  # a claim


def a_frame(number: int, epoch: int = 1, size: int = 10) -> Frame:
    return Frame(epoch, number, number, 1, number, 0, b"%d" % number * size)


class Log:
    """A log that compares before it appends, and answers when it is told to."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def take(self, action: Publish | Look) -> int | None:
        assert isinstance(action, Publish)
        if action.expected != len(self.messages):
            return None
        self.messages.append(action.data)
        return len(self.messages)

    def behind(self, sequence: int) -> list[tuple[int, bytes]]:
        return list(enumerate(self.messages[sequence:], sequence + 1))

    def frames(self) -> list[int]:
        reading = Reading()
        found = [reading.take(sequence, data) for sequence, data in self.behind(0)]
        return [frame.number for frame in found if frame is not None]


def answer(log: Log, writing: Writing, now: float) -> None:
    """Everything that is to be done now is, and is answered."""
    while actions := writing.poll(now):
        for action in actions:
            if isinstance(action, Look):
                writing.looked(log.behind(action.after))
                continue
            sequence = log.take(action)
            if sequence is None:
                writing.refused(action.run, action.ordinal)
            else:
                writing.acknowledged(action.run, action.ordinal, sequence)


def a_leader(log: Log, epoch: int = 1, claim: int = ALONE, part_bytes: int = 1 << 10) -> Writing:
    reading = Reading()
    for sequence, data in log.behind(0):
        reading.take(sequence, data)
    writing = Writing(reading, epoch, claim, part_bytes)
    answer(log, writing, 0)
    assert writing.is_won
    return writing


@pytest.mark.parametrize(
    "entry",
    [
        Entry(FENCE, 3, 1 << 63, 0, 0, 12),
        Entry(MARK, 3, 5, 1, 900, 12),
        Entry(PART, (1 << 32) - 1, 5, 2, 3, (1 << 64) - 1, 1, 2, b"bytes"),
    ],
)
def test_a_message_reads_back_as_it_was_written(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


def test_what_is_not_whole_is_no_message() -> None:
    data = encode(Entry(PART, 1, 2, 3, 4, 5, 0, 1, b"bytes"))
    for at in range(len(data)):
        assert decode(data[:at]) is None
        assert decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
    assert decode(encode(Entry(3, 1, 2, 3, 4, 5))) is None
    assert decode(encode(Entry(PART, 1, 2, 3, 4, 5, 2, 2))) is None
    assert decode(encode(Entry(PART, 1, 2, 3, 4, 5, 0, PARTS_MAX + 1))) is None


def test_frames_are_confirmed_in_order_whole_and_in_parts() -> None:
    log = Log()
    leader = a_leader(log, part_bytes=60)
    for number in range(1, 30):
        leader.append(a_frame(number, size=number * 20))
    leader.mark()
    was_idle = leader.is_idle
    answer(log, leader, 0)
    assert not was_idle
    assert leader.confirmed == 29
    assert leader.is_idle
    assert log.frames() == list(range(1, 30))


def test_no_more_is_under_way_than_helps() -> None:
    leader = a_leader(Log())
    for number in range(1, 30):
        leader.append(a_frame(number))
    assert len(leader.poll(0)) == UNDER_WAY_MAX
    assert leader.poll(0) == []


def test_acknowledgements_out_of_turn_confirm_nothing_before_those_before_them() -> None:
    log = Log()
    leader = a_leader(log)
    for number in (1, 2, 3):
        leader.append(a_frame(number))
    first, second, third = leader.poll(0)
    sequences = [log.take(action) for action in (first, second, third)]
    assert isinstance(second, Publish)
    assert isinstance(first, Publish)
    assert sequences[1] is not None
    assert sequences[0] is not None
    leader.acknowledged(second.run, second.ordinal, sequences[1])
    assert leader.confirmed == 0
    leader.acknowledged(first.run, first.ordinal, sequences[0])
    assert leader.confirmed == 2


def test_after_silence_it_looks_and_goes_on_with_what_is_not_there() -> None:
    log = Log()
    leader = a_leader(log, part_bytes=60)
    leader.append(a_frame(1, size=200))
    leader.append(a_frame(2))
    actions = leader.poll(0)
    for action in actions[:3]:  # the others are lost, and so are the answers
        log.take(action)
    assert leader.poll(SILENCE_SECONDS / 2) == []
    assert leader.poll(SILENCE_SECONDS) == [Look(1)]
    assert leader.poll(SILENCE_SECONDS) == []  # it is under way
    later = 2 * SILENCE_SECONDS + LOOK_SECONDS
    assert leader.poll(later) == [Look(1)]  # it had no answer
    leader.looked(log.behind(1))
    answer(log, leader, later)
    assert leader.confirmed == 2
    assert log.frames() == [1, 2]


def test_parts_that_were_acknowledged_count_with_those_that_are_found() -> None:
    log = Log()
    leader = a_leader(log, part_bytes=60)
    leader.append(a_frame(1, size=100))
    actions = leader.poll(0)
    sequences = [log.take(action) for action in actions]
    first = actions[0]
    assert isinstance(first, Publish)
    assert sequences[0] is not None
    leader.acknowledged(first.run, first.ordinal, sequences[0])
    assert leader.poll(SILENCE_SECONDS) == [Look(2)]
    assert leader.looked(log.behind(2)) == []
    assert leader.confirmed == 1
    assert leader.is_idle


def test_a_late_message_of_a_run_before_takes_a_place_and_nothing_is_missing() -> None:
    log = Log()
    leader = a_leader(log)
    leader.append(a_frame(1))
    leader.append(a_frame(2))
    late, lost = leader.poll(0)
    assert isinstance(lost, Publish)
    [look] = leader.poll(SILENCE_SECONDS)
    leader.looked(log.behind(1))  # nothing is there yet
    again = leader.poll(SILENCE_SECONDS)
    assert isinstance(look, Look)
    log.take(late)
    for action in again:
        assert isinstance(action, Publish)
        sequence = log.take(action)
        if sequence is None:
            leader.refused(action.run, action.ordinal)
        else:
            leader.acknowledged(action.run, action.ordinal, sequence)
    leader.refused(lost.run, lost.ordinal)  # of a run before: it does not matter
    leader.acknowledged(lost.run, lost.ordinal, 99)
    answer(log, leader, 2 * SILENCE_SECONDS)
    assert leader.confirmed == 2
    assert log.frames() == [1, 2]


def test_an_acknowledgement_that_was_not_foreseen_is_looked_into() -> None:
    log = Log()
    leader = a_leader(log)
    leader.append(a_frame(1))
    [action] = leader.poll(0)
    assert isinstance(action, Publish)
    leader.acknowledged(action.run, action.ordinal, 77)
    assert leader.confirmed == 0
    assert leader.poll(LOOK_SECONDS) == [Look(1)]


def test_a_run_that_is_full_is_followed_by_another_when_all_of_it_is_acknowledged() -> None:
    log = Log()
    writing = Writing(Reading(), 1, ALONE, part_bytes=60, run_messages=4)
    answer(log, writing, 0)
    writing.append(a_frame(1, size=300))
    actions = writing.poll(0)
    assert len(actions) == 3  # the fence was the first of the run
    assert writing.poll(0) == []
    for action in actions:
        assert isinstance(action, Publish)
        sequence = log.take(action)
        assert sequence is not None
        writing.acknowledged(action.run, action.ordinal, sequence)
    [first, *_] = writing.poll(0)
    assert isinstance(first, Publish)
    assert (first.run, first.ordinal) == (1, 0)
    assert log.take(first) == 5
    writing.acknowledged(1, 0, 5)
    answer(log, writing, SILENCE_SECONDS)
    assert writing.confirmed == 1
    assert log.frames() == [1]


def test_a_late_answer_says_who_led_when_it_was_asked() -> None:
    log = Log()
    leader = a_leader(log)
    assert leader.led_at == 0
    leader.append(a_frame(1))
    [action] = leader.poll(1)
    log.take(action)
    [look] = leader.poll(1 + SILENCE_SECONDS)
    assert isinstance(look, Look)
    leader.looked(log.behind(look.after))
    assert (leader.confirmed, leader.led_at) == (1, 1)
    leader.append(a_frame(2))
    [action] = leader.poll(9)
    assert isinstance(action, Publish)
    leader.acknowledged(action.run, action.ordinal, log.take(action) or 0)
    assert leader.led_at == 9


def test_a_look_that_failed_is_tried_again_soon() -> None:
    leader = a_leader(Log())
    leader.append(a_frame(1))
    [action] = leader.poll(0)
    assert isinstance(action, Publish)
    leader.refused(action.run, action.ordinal)
    assert leader.poll(1) == [Look(1)]
    leader.unseen()
    assert leader.poll(1 + LOOK_SECONDS / 2) == []
    assert leader.poll(1 + LOOK_SECONDS) == [Look(1)]


def test_who_is_deposed_knows_it_when_looking_and_confirms_nothing_more() -> None:
    log = Log()
    old = a_leader(log)
    old.append(a_frame(1))
    answer(log, old, 0)
    new = a_leader(log, epoch=2, claim=8)
    new.append(a_frame(2, epoch=2))
    answer(log, new, 0)
    old.append(a_frame(2))
    [action] = old.poll(0)
    assert isinstance(action, Publish)
    assert log.take(action) is None
    old.refused(action.run, action.ordinal)
    [look] = old.poll(LOOK_SECONDS)
    assert isinstance(look, Look)
    [frame] = old.looked(log.behind(look.after))
    assert frame == a_frame(2, epoch=2)
    assert old.is_over
    assert not old.is_won
    assert old.confirmed == 1
    assert old.poll(10) == []
    old.acknowledged(action.run, action.ordinal, 4)
    assert old.confirmed == 1


def test_what_a_deposed_writer_publishes_behind_the_fence_is_void() -> None:
    log = Log()
    old = a_leader(log)
    old.append(a_frame(1))
    old.append(a_frame(2))
    _, late = old.poll(0)  # the first is lost
    new = a_leader(log, epoch=2, claim=8)
    assert log.take(late) is not None  # right behind the fence, where it fits
    new.append(a_frame(1, epoch=2))
    answer(log, new, 0)
    answer(log, new, SILENCE_SECONDS)
    assert new.confirmed == 1
    assert log.frames() == [1]
    reading = Reading()
    for sequence, data in log.behind(0):
        reading.take(sequence, data)
    assert reading.void >= 1


def test_a_fence_that_had_no_answer_is_found() -> None:
    log = Log()
    writing = Writing(Reading(), 1, ALONE)
    [fence] = writing.poll(0)
    log.take(fence)
    was_won = writing.is_won
    answer(log, writing, SILENCE_SECONDS)
    assert (was_won, writing.is_won) == (False, True)
    assert len(log.messages) == 1


def test_a_candidate_reads_what_came_before_its_fence() -> None:
    log = Log()
    candidate = Writing(Reading(), 2, 8)
    leader = a_leader(log)
    leader.append(a_frame(1))
    answer(log, leader, 0)
    [fence] = candidate.poll(0)
    assert isinstance(fence, Publish)
    assert log.take(fence) is None
    candidate.refused(fence.run, fence.ordinal)
    [look] = candidate.poll(LOOK_SECONDS)
    assert isinstance(look, Look)
    assert candidate.looked(log.behind(look.after)) == [a_frame(1)]
    assert candidate.confirmed == 0  # nothing of its own
    answer(log, candidate, LOOK_SECONDS)
    assert candidate.is_won


def test_reading_begins_at_a_mark_where_what_is_before_it_was_purged() -> None:
    log = Log()
    leader = a_leader(log)
    leader.append(a_frame(1))
    leader.mark()
    leader.append(a_frame(2))
    answer(log, leader, 0)
    reading = Reading()
    assert [reading.take(sequence, data) for sequence, data in log.behind(2)] == [
        None, a_frame(2),
    ]  # fmt: skip
    assert reading.number == 2
    assert reading.take(1, log.messages[0]) is None  # it was read
    with pytest.raises(Spoilt, match="goes on at message 4"):
        Reading().take(4, log.messages[3])
    with pytest.raises(Spoilt, match="goes on at message 9"):
        reading.take(9, b"noise")


def test_a_frame_that_is_missing_or_unreadable_is_named() -> None:
    reading = Reading()
    reading.take(1, encode(Entry(FENCE, 1, ALONE, 0, 0, 0)))
    with pytest.raises(Spoilt, match="message 2 of the lane ends a frame that cannot be read"):
        reading.take(2, encode(Entry(PART, 1, ALONE, 0, 1, 1, 0, 1, b"no frame")))
    reading = Reading()
    log = Log()
    leader = a_leader(log)
    leader.append(a_frame(5))
    [action] = leader.poll(0)
    assert isinstance(action, Publish)
    reading.take(1, log.messages[0])
    with pytest.raises(Spoilt, match="frame 1 is missing before frame 5"):
        reading.take(2, action.data)


def test_a_frame_that_is_there_twice_counts_once() -> None:
    log = Log()
    leader = a_leader(log)
    leader.append(a_frame(1))
    answer(log, leader, 0)
    again = Entry(*decode(log.messages[1]) or ())._replace(run=9, ordinal=0)
    log.messages.append(encode(again))
    assert log.frames() == [1]


def test_a_part_without_those_before_it_is_passed_over() -> None:
    reading = Reading()
    reading.take(1, encode(Entry(FENCE, 1, ALONE, 0, 0, 0)))
    assert reading.take(2, encode(Entry(PART, 1, ALONE, 0, 1, 1, 1, 2, b"second"))) is None
    assert reading.take(3, b"noise") is None
    assert reading.void == 1
