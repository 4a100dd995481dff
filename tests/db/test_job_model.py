"""Any sequence of calls leaves the queue as a model of a few lines says."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from job_examples import claim, let_expire, request

from pfatune.db import JobState, Lease, LeaseLostError, Store

MAX_ATTEMPTS = 2
Q, R, D, F, C = JobState


@dataclass
class Model:
    b: int
    priority: int
    state: JobState = Q
    attempts: int = 0
    fence: int = 0
    cancel: bool = False
    expired: bool = False


class Queue(RuleBasedStateMachine):
    leases: Bundle[Lease] = Bundle("leases")
    template: Path

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(self.template, self.folder / "tuned.db")
        self.store = Store.open(self.folder / "tuned.db")
        self.jobs: dict[int, Model] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    @rule(b=st.integers(1, 3), priority=st.integers(-1, 1))
    def submit(self, b: int, priority: int) -> None:
        job, created = self.store.jobs.submit(request(b, priority=priority))
        same = [one for one, model in self.jobs.items() if model.b == b and model.state in (Q, R) and not model.cancel]
        assert created == (not same)
        if created:
            self.jobs[job.id] = Model(b, priority)
        else:
            assert [job.id] == same
            model = self.jobs[job.id]
            if model.state is Q:
                model.priority = max(model.priority, priority)

    @rule(number=st.integers(1, 6))
    def cancel(self, number: int) -> None:
        job = self.store.jobs.cancel(number)
        model = self.jobs.get(number)
        assert (job is None) == (model is None)
        if model is not None and model.state in (Q, R):
            model.cancel = True
            if model.state is Q:
                model.state = C

    @rule(target=leases)
    def claim(self) -> object:
        found = claim(self.store, max_attempts=MAX_ATTEMPTS)
        for model in self.jobs.values():
            if model.state is R and model.expired:
                model.state = C if model.cancel else F if model.attempts >= MAX_ATTEMPTS else Q
                model.expired = False
        waiting = sorted((-model.priority, number) for number, model in self.jobs.items() if model.state is Q)
        for _, number in waiting:
            model = self.jobs[number]
            if model.attempts >= MAX_ATTEMPTS:
                model.state = F
                continue
            model.state, model.attempts, model.fence = R, model.attempts + 1, model.fence + 1
            assert found is not None
            assert (found[1].job_id, found[1].fence) == (number, model.fence)
            return found[1]
        assert found is None
        return multiple()

    @rule(lease=leases)
    def expire(self, lease: Lease) -> None:
        model = self.jobs[lease.job_id]
        if model.state is R and model.fence == lease.fence:
            let_expire(self.store, lease)
            model.expired = True

    @rule(lease=leases)
    def heartbeat(self, lease: Lease) -> None:
        model = self.held(lease)
        if model is None:
            with pytest.raises(LeaseLostError):
                self.store.jobs.heartbeat(lease, seconds=600)
        else:
            assert self.store.jobs.heartbeat(lease, seconds=600) == model.cancel
            model.expired = False

    @rule(lease=leases, state=st.sampled_from([D, F, C]))
    def finish(self, lease: Lease, state: JobState) -> None:
        model = self.held(lease)
        if model is None:
            with pytest.raises(LeaseLostError):
                self.store.jobs.finish(lease, state)
        else:
            self.store.jobs.finish(lease, state)
            model.state = state

    @rule(lease=leases, count=st.booleans())
    def release(self, lease: Lease, count: bool) -> None:
        model = self.held(lease)
        if model is None:
            with pytest.raises(LeaseLostError):
                self.store.jobs.release(lease, count=count)
        else:
            self.store.jobs.release(lease, count=count)
            model.state = C if model.cancel else Q
            model.attempts -= not count
            model.expired = False

    def held(self, lease: Lease) -> Model | None:
        model = self.jobs[lease.job_id]
        return model if model.state is R and model.fence == lease.fence else None

    @invariant()
    def queue_is_as_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        found = {
            job.id: (job.state, job.request.priority, job.attempts, job.fence, job.cancel_requested)
            for job in self.store.jobs.list()
        }
        assert found == {
            number: (model.state, model.priority, model.attempts, model.fence, model.cancel)
            for number, model in self.jobs.items()
        }


@pytest.mark.slow
def test_queue_follows_its_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    Queue.template = tmp_path_factory.mktemp("queue") / "empty.db"
    Store.open(Queue.template).close()
    case = Queue.TestCase()
    case.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    case.runTest()
