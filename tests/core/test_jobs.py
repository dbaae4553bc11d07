"""A job sends all messages of a queue again, bit by bit, each once, whatever happens meanwhile."""

import random

import pytest

from posthouse.core.commands import (
    ENDED_JOBS_MAX,
    JOBS_MAX,
    STEPS_MAX,
    CancelJob,
    Complete,
    CreateQueue,
    DeadLetter,
    DeleteQueue,
    ListJobs,
    Pause,
    Resume,
    SetFanout,
    StartJob,
    TurnClockBack,
    UpdateQueue,
)
from posthouse.core.errors import InvalidArgument, NotAllowed, NotFound, QuotaExceeded
from posthouse.core.fit_record import fit_record
from posthouse.core.model import Job, QueueProperties, State, dead_letter_queue
from posthouse.core.records import JobAdvanced, JobEnded, JobStarted, Missing, Resubmitted
from posthouse.core.versions import version_needed
from tests.core.sound import held, sound
from tests.core.world import World, a_message, bodies


def buried(world: World, queue: str, count: int) -> str:
    """A dead-letter queue with so many messages: 0, 1, ..."""
    for first in range(0, count, 1_000):
        names = [str(n) for n in range(first, min(first + 1_000, count))]
        world.send(queue, *names)
        tokens = [delivery.token for delivery in world.receive(queue, len(names))]
        world.do(DeadLetter(queue, tokens, reason="bad"))
    return dead_letter_queue(queue)


def started(world: World, queue: str, **options: object) -> Job:
    job = world.do(StartJob(queue, **options)).answer  # type: ignore[arg-type]
    assert isinstance(job, Job)
    return job


def jobs(world: World, queue: str | None = None) -> list[Job]:
    answer = world.do(ListJobs(queue)).answer
    assert isinstance(answer, list)
    return [job for job in answer if isinstance(job, Job)]


def test_a_job_sends_all_dead_letters_to_where_they_came_from() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, 3)
    job = started(world, dead)
    assert (job.number, job.status, job.total, job.moved) == (1, "running", 3, 0)
    waiting = world.wait(queue, 2, ms=5_000)
    got = world.advance(1)
    assert {delivery.receiver for delivery in got} == {waiting}
    assert bodies(got) == ["0", "1"]
    [ended] = jobs(world, dead)
    assert (ended.status, ended.moved, ended.left) == ("completed", 3, 0)
    assert ended.ended_ms == world.now_ms - 1
    assert world.counts(queue).active == 1
    assert held(world, dead) == []
    sound(world)


def test_a_job_sends_to_another_queue_if_it_is_told_so() -> None:
    world = World()
    dead = buried(world, world.queue(), 2)
    started(world, dead, target=world.queue("other"))
    world.advance(1)
    assert held(world, "other") == ["0", "1"]


def test_forwarded_dead_letters_go_each_to_the_queue_it_came_from() -> None:
    world = World()
    world.queue("graves")
    for queue in ("red", "blue"):
        buried(world, world.queue(queue, forward_dead_to="graves"), 2)
    world.send("graves", "sent here")
    started(world, "graves")
    world.advance(1)
    assert (held(world, "red"), held(world, "blue")) == (["0", "1"], ["0", "1"])
    assert held(world, "graves") == ["sent here"]
    [job] = jobs(world)
    assert (job.status, job.moved, job.left) == ("completed", 4, 1)
    sound(world)


def test_messages_that_were_no_dead_letters_go_where_a_job_is_told() -> None:
    world = World()
    world.send(world.queue(), "a")
    started(world, "orders", target=world.queue("other"))
    world.advance(1)
    assert (held(world, "orders"), held(world, "other")) == ([], ["a"])
    sound(world)


def test_what_comes_after_a_job_has_begun_stays() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, 2)
    started(world, dead, rate=1)
    world.advance(0)
    buried(world, world.queue("more", forward_dead_to="orders"), 0)
    world.send(queue, "late")
    deliveries = {bodies([each])[0]: each for each in world.receive(queue, 2)}
    world.do(DeadLetter(queue, [deliveries["late"].token]))
    world.advance(10_000)
    assert held(world, dead) == ["late"]
    assert [job.moved for job in jobs(world)] == [2]
    sound(world)


def test_a_job_keeps_to_its_rate() -> None:
    world = World()
    dead = buried(world, world.queue(), 50)
    begun_ms = world.now_ms
    started(world, dead, rate=20)
    world.advance(999)
    assert [job.moved for job in jobs(world)] == [20]
    world.advance(1_001)
    assert [job.moved for job in jobs(world)] == [42]
    world.advance(10_000)
    [job] = jobs(world)
    assert (job.status, job.moved, job.ended_ms - begun_ms) == ("completed", 50, 2_400)


def test_one_tick_moves_a_limited_number_of_messages() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, 2 * STEPS_MAX + 5)
    started(world, dead)
    assert world.tick()
    assert world.counts(queue).active == STEPS_MAX
    while world.tick():
        pass
    assert world.counts(queue).active == 2 * STEPS_MAX + 5
    assert [job.status for job in jobs(world)] == ["completed"]


def test_jobs_that_are_due_together_share_the_ticks() -> None:
    world = World()
    for name in ("red", "blue"):
        started(world, buried(world, world.queue(name), STEPS_MAX + 5))
    assert world.tick()
    assert world.counts("red").active + world.counts("blue").active == STEPS_MAX
    world.advance(1)
    assert [job.moved for job in jobs(world)] == [STEPS_MAX + 5] * 2


def test_messages_that_cannot_go_are_passed_over() -> None:
    world = World()
    queue = world.queue(max_message_bytes=1_000)
    world.send(queue, "0", "1", "2")
    tokens = [delivery.token for delivery in world.receive(queue, 3)]
    dead = dead_letter_queue(queue)
    world.do(DeadLetter(queue, tokens))
    world.receive(dead, 1)  # it is locked
    other = world.queue("other", requires_session=True)
    started(world, dead, target=other)
    world.advance(1)
    [job] = jobs(world)
    assert (job.status, job.moved, job.left, job.total) == ("completed", 0, 3, 2)
    assert held(world, dead) == ["0", "1", "2"]


def test_expired_messages_are_left_to_expire() -> None:
    world = World()
    world.send(world.queue(), a_message("a", ttl_ms=5), "b")
    started(world, "orders", target=world.queue("other"))
    world.now_ms += 5
    world.tick()
    assert held(world, "other") == ["b"]
    sound(world)


def test_a_job_waits_while_its_target_is_full_and_goes_on_by_itself() -> None:
    world = World()
    queue = world.queue(max_messages=2)
    dead = buried(world, queue, 2)
    world.send(queue, "x")
    started(world, dead)
    world.advance(1)
    [job] = jobs(world)
    assert (job.status, job.moved, job.code) == ("running", 1, "quota-exceeded")
    assert "max_messages" in job.problem
    world.advance(6_000)
    delays = [record.wait_ms for _, record in world.journal if isinstance(record, JobAdvanced)]
    assert delays == [1_000, 2_000, 4_000]
    for delivery in world.receive(queue, 2):
        world.do(Complete(queue, [delivery.token]))
    world.advance(10_000)
    [job] = jobs(world)
    assert (job.status, job.moved, job.problem) == ("completed", 2, "")
    sound(world)


def test_a_job_waits_while_its_target_is_paused_or_there_is_no_memory() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, 1)
    world.do(Pause(queue, sending=True))
    started(world, dead)
    world.advance(1)
    assert [job.code for job in jobs(world)] == ["disabled"]
    world.do(Resume(queue, sending=True))
    world.do(SetFanout("stopped"))
    world.advance(1_000)
    assert [job.code for job in jobs(world)] == ["busy"]
    world.do(SetFanout("open"))
    world.advance(60_000)
    assert [job.status for job in jobs(world)] == ["completed"]


def test_a_job_fails_if_a_target_is_gone_and_keeps_what_it_has_moved() -> None:
    world = World()
    world.queue("graves")
    for queue in ("red", "blue"):
        buried(world, world.queue(queue, forward_dead_to="graves"), 1)
    world.do(DeleteQueue("blue"))
    started(world, "graves")
    world.advance(1)
    [job] = jobs(world)
    assert (job.status, job.moved, job.code) == ("failed", 1, "not-found")
    assert "'blue'" in job.problem
    assert held(world, "red") == ["0"]
    sound(world)


def test_a_job_fails_if_its_queue_is_gone_or_is_another() -> None:
    world = World()
    for name in ("gone", "other"):
        started(world, world.queue(name), target=world.queue(f"to-{name}"))
        world.do(DeleteQueue(name))
    world.do(CreateQueue("other"))
    world.send("other", "new")
    world.advance(1)
    assert [job.status for job in jobs(world)] == ["failed", "failed"]
    assert held(world, "other") == ["new"]
    sound(world)


def test_a_job_can_be_cancelled_and_what_it_moved_stays_moved() -> None:
    world = World()
    queue = world.queue()
    dead = buried(world, queue, 5)
    job = started(world, dead, rate=1)
    world.advance(1_000)
    answer = world.do(CancelJob(dead, job.number)).answer
    assert isinstance(answer, Job)
    assert (answer.status, answer.moved) == ("cancelled", 2)
    world.advance(60_000)
    assert [each.moved for each in jobs(world)] == [2]
    assert world.counts(queue).active == 2
    with pytest.raises(NotAllowed, match="cancelled"):
        world.do(CancelJob(dead, job.number))
    for queue, number in ((dead, 9), ("orders", job.number)):
        with pytest.raises(NotFound):
            world.do(CancelJob(queue, number))
    sound(world)


def test_one_job_runs_on_a_queue_at_a_time() -> None:
    world = World()
    dead = buried(world, world.queue(), 5)
    started(world, dead, rate=1)
    with pytest.raises(NotAllowed, match="cancel it"):
        started(world, dead)
    world.advance(60_000)
    assert started(world, dead).number == 2
    assert [job.number for job in jobs(world, dead)] == [2, 1]


def test_what_makes_no_job_is_refused() -> None:
    world = World()
    queue = world.queue()
    for options in ({"rate": -1}, {"target": queue}):
        with pytest.raises(InvalidArgument):
            started(world, queue, **options)
    with pytest.raises(NotFound):
        started(world, queue, target="none")
    with pytest.raises(NotFound):
        started(world, "none")
    with pytest.raises(NotAllowed):
        started(world, queue, target=dead_letter_queue(queue))


def test_there_is_a_limit_on_running_jobs_and_on_those_that_are_remembered() -> None:
    world = World()
    target = world.queue("target")
    for n in range(JOBS_MAX):
        started(world, world.queue(f"q{n}"), target=target)
    with pytest.raises(QuotaExceeded):
        started(world, world.queue("more"), target=target)
    world.advance(1)
    for _ in range(ENDED_JOBS_MAX - JOBS_MAX + 1):
        world.do(CancelJob("q0", started(world, "q0", target=target).number))
    assert len(world.state.jobs) == ENDED_JOBS_MAX
    assert min(world.state.jobs) == 2
    assert len(jobs(world)) == 100
    sound(world)


def test_the_number_of_a_job_is_never_used_again() -> None:
    world = World()
    started(world, world.queue(), target=world.queue("other"))
    world.do(DeleteQueue("orders"))
    world.advance(1)
    after = world.restarted()
    assert started(after, after.queue("more"), target="other").number == 2


def test_a_job_is_not_held_up_where_the_clock_is_turned_back() -> None:
    world = World()
    world.now_ms = 10_000_000
    dead = buried(world, world.queue(), 3)
    started(world, dead, rate=1)
    world.do(CancelJob(dead, 1))
    started(world, dead, rate=1)
    world.advance(0)
    after = world.restarted()
    after.now_ms = 1_000_000
    after.do(TurnClockBack(9_000_000))
    after.advance(5_000)
    assert [job.status for job in jobs(after)] == ["completed", "cancelled"]
    assert all(job.ended_ms <= after.now_ms for job in jobs(after))
    sound(after)


def test_records_of_jobs_fit_only_the_jobs_that_are_there() -> None:
    world = World()
    world.queue()
    begun = JobStarted("orders", 1, 1, None, 0, False, 0, 0)
    on, over = JobAdvanced("orders", 1, 1, 1, 1, 1, 0), JobEnded("orders", 1, 1, "completed")
    empty = State("test")
    assert [fit_record(empty, each) for each in (begun, on, over)] == [[Missing(1)]] * 3
    assert fit_record(world.state, begun) == [begun]
    started(world, "orders")
    assert fit_record(world.state, begun) == [Missing(1)]
    assert [fit_record(world.state, each) for each in (on, over)] == [[on], [over]]
    world.advance(1)
    assert [fit_record(world.state, each) for each in (on, over)] == [[Missing(1)]] * 2


def test_nodes_of_the_release_before_are_not_sent_jobs() -> None:
    world = World()
    outcome = world.do(StartJob(world.queue()))
    assert version_needed(outcome.records) == 2


@pytest.mark.parametrize("seed", range(60))
def test_each_message_is_moved_once_whatever_happens_meanwhile(seed: int) -> None:
    """Jobs, receivers, restarts and full queues by chance: every message is in one place."""
    chance = random.Random(seed)
    world = World()
    limit = chance.choice([None, 3, 8])
    world.queue("graves", grouping=chance.choice(["none", "group"]))
    queues = [
        world.queue(name, forward_dead_to=chance.choice([None, "graves"]), max_messages=limit)
        for name in ("red", "blue")
    ]
    sent, ended = set(), set()
    for step in range(120):
        queue = chance.choice(queues)
        source = chance.choice(["graves", *map(dead_letter_queue, queues)])
        try:
            match chance.randrange(6):
                case 0:
                    name = f"m{step}"
                    world.send(queue, a_message(name, group=chance.choice([None, "a", "b"])))
                    sent.add(name)
                case 1 | 2:
                    for delivery in world.receive(queue, 3):
                        world.do(DeadLetter(queue, [delivery.token]))
                case 3:
                    for delivery in world.receive(chance.choice([queue, source])):
                        world.do(Complete(None, [delivery.token]))
                        ended.add(bodies([delivery])[0])
                case 4:
                    started(world, source, rate=chance.choice([0, 2, 30]))
                case _:
                    world = world.restarted(epoch=step + 2) if chance.random() < 0.3 else world
        except (NotAllowed, QuotaExceeded):
            pass
        world.advance(chance.choice([0, 0, 10, 700]))
    for name in queues:
        world.do(Resume(name, sending=True))
    there = [
        body
        for name in ("graves", *queues, *map(dead_letter_queue, queues))
        for body in held(world, name)
    ]
    assert sorted(there) == sorted(sent - ended)
    moved = sum(len(r.sequences) for _, r in world.journal if isinstance(r, Resubmitted))
    assert moved == sum(job.moved for job in jobs(world)) > 0
    sound(world)


def test_dead_letters_go_back_from_a_queue_whose_own_go_to_theirs() -> None:
    world = World()
    world.queue("b")
    world.queue("a", forward_dead_to="b")
    world.do(UpdateQueue("b", QueueProperties(forward_dead_to="a")))
    world.send("a", "x")
    [delivery] = world.receive("a")
    world.do(DeadLetter("a", [delivery.token]))
    started(world, "b")
    world.advance(1)
    assert (held(world, "a"), held(world, "b")) == (["x"], [])
    sound(world)
