"""The contract of what is served and listed across environments, over every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from db_examples import NPU, SHAPE, SIM, WORKLOAD, config, measured, verified

from pfatune.db import Kind, Store
from pfatune.kernel.ladder import Entry
from pfatune.kernel.shapes import PfaShape, Workload

OTHER = Workload(PfaShape(b=4, s2=2048))
WIDE = Workload(PfaShape(b=2, s2=1024, nq=16))
RAGGED = Workload(SHAPE, (100, 1024))


def promote(store: Store, env_id: int, workload: Workload, cost: float, stitch: int) -> int:
    best, default = store.add(env_id, [measured(cost, workload=workload, stitch=stitch), measured(workload=workload)])
    shape = workload.shape
    store.promote(env_id, best, default, store.add_verification(env_id, verified(shape=shape, stitch=stitch)))
    return best


def test_nothing_is_served_at_first(store: Store, env_id: int) -> None:
    store.add(env_id, [measured()])
    assert store.served_environments() == []
    assert store.served(env_id) == (0, [])
    assert store.served(env_id, after=7) == (7, [])


def test_current_rows_are_served_with_their_evidence(store: Store, env_id: int) -> None:
    first = promote(store, env_id, WORKLOAD, 50.0, 128)
    ragged = promote(store, env_id, RAGGED, 40.0, 64)
    newest, found = store.served(env_id)
    tuned = store.tuned(env_id, WORKLOAD)[0]
    verified_at = tuned.verification.created_at
    assert verified_at is not None
    assert [shape for shape, _ in found] == [SHAPE, SHAPE]
    entry = found[0][1]
    assert entry == Entry(config(128), 50.0, 100.0, first, verified_at.isoformat(), True)
    assert datetime.fromisoformat(entry.verified_at).tzinfo == UTC
    assert (found[1][1].measurement, found[1][1].full) == (ragged, False)
    assert newest > tuned.id


def test_only_what_is_new_is_served_again(store: Store, env_id: int) -> None:
    promote(store, env_id, WORKLOAD, 50.0, 128)
    promote(store, env_id, OTHER, 50.0, 128)
    newest, found = store.served(env_id)
    assert len(found) == 2
    assert store.served(env_id, newest) == (newest, [])
    better = promote(store, env_id, WORKLOAD, 30.0, 64)
    last, changed = store.served(env_id, newest)
    assert last > newest
    assert [(shape, entry.measurement, entry.cost) for shape, entry in changed] == [(SHAPE, better, 30.0)]
    assert sorted(entry.cost for _, entry in store.served(env_id)[1]) == [30.0, 50.0]


def test_environments_are_served_apart_newest_first(store: Store, env_id: int) -> None:
    npu = store.environment_id(NPU)
    store.environment_id(replace(SIM, pypto="9"))
    promote(store, env_id, WORKLOAD, 50.0, 128)
    promote(store, npu, WORKLOAD, 5.0, 128)
    assert store.served_environments() == [(npu, NPU), (env_id, SIM)]
    assert [entry.cost for _, entry in store.served(npu)[1]] == [5.0]


def test_measurement_is_found_by_its_id(store: Store, env_id: int) -> None:
    (added,) = store.add(env_id, [measured(7.0)])
    found = store.measurement(added)
    assert found is not None
    where, one = found
    assert (where, one.id, one.cost) == (env_id, added, 7.0)
    assert store.measurement(added + 1) is None


def test_measurements_are_paged_newest_first(store: Store, env_id: int) -> None:
    npu = store.environment_id(NPU)
    plain, other, failed = store.add(env_id, [measured(), measured(workload=OTHER), measured(None)])
    ragged, wide, elsewhere = (
        store.add(env_id, [measured(workload=RAGGED)])
        + store.add(env_id, [measured(workload=WIDE)])
        + store.add(npu, [measured()])
    )

    def ids(**conditions: object) -> list[int | None]:
        return [one.id for _, one in store.measurement_page(**conditions)]  # type: ignore[arg-type]  # by name

    assert ids() == [elsewhere, wide, ragged, failed, other, plain]
    assert ids(limit=2) == [elsewhere, wide]
    assert ids(limit=2, before=wide) == [ragged, failed]
    assert ids(env_id=npu) == [elsewhere]
    assert ids(env_id=env_id, limit=1) == [wide]
    assert ids(workload=WORKLOAD) == [elsewhere, failed, plain]
    assert ids(workload=RAGGED) == [ragged]
    assert ids(workload=WORKLOAD, env_id=env_id, kind=Kind.OK) == [plain]
    assert ids(family=SHAPE.family) == [elsewhere, ragged, failed, other, plain]
    assert ids(family=WIDE.shape.family, env_id=env_id) == [wide]
    assert ids(kind=Kind.REJECTED) == [failed]
    assert ids(kind=Kind.CRASHED) == []
    assert [where for where, _ in store.measurement_page(limit=2)] == [npu, env_id]


def test_measurements_are_counted_by_backend_soc_and_kind(store: Store, env_id: int) -> None:
    assert store.measurement_counts() == {}
    newer = store.environment_id(replace(SIM, pypto="9"))
    npu = store.environment_id(NPU)
    store.add(env_id, [measured(), measured(), measured(None)])
    store.add(newer, [measured()])
    store.add(npu, [measured(None)])
    assert store.measurement_counts() == {
        ("sim", SIM.soc, Kind.OK): 3,
        ("sim", SIM.soc, Kind.REJECTED): 1,
        ("npu", NPU.soc, Kind.REJECTED): 1,
    }


def test_ping_reads_and_writes_nothing(store: Store, target: str) -> None:
    store.ping()
    with Store.open(target, read_only=True) as reader, store.database.write():
        reader.ping()
