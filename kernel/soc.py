"""The chips the kernel runs on: sizes in bytes, clocks in MHz, rates in bytes per cycle.

Figures of the Ascend 950PR (957x parts, 28 cube and 56 vector cores) as PyPTO's platform
description ``950PR_957x`` gives them; the 950DT differs here in its memory rate only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Soc:
    """What legality and the cost model need to know of a chip."""

    name: str
    version: str
    npu_arch: str
    cube_cores: int
    vector_cores: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int
    l1_bytes: int
    ub_bytes: int
    l2_bytes: int
    clock_mhz: int
    ddr_read_bytes_per_cycle: int


ASCEND_950PR = Soc(
    name="950PR",
    version="Ascend950PR_9579",
    npu_arch="DAV_3510",
    cube_cores=28,
    vector_cores=56,
    l0a_bytes=65536,
    l0b_bytes=65536,
    l0c_bytes=262144,
    l1_bytes=524288,
    ub_bytes=253952,
    l2_bytes=134217728,
    clock_mhz=1650,
    ddr_read_bytes_per_cycle=31,
)
ASCEND_950DT = replace(ASCEND_950PR, name="950DT", version="Ascend950DT_9579", ddr_read_bytes_per_cycle=80)

SOCS: dict[str, Soc] = {soc.name: soc for soc in (ASCEND_950PR, ASCEND_950DT)}


class UnknownSocError(ValueError):
    """No SoC of that name is described here."""


def soc(name: str) -> Soc:
    """The chip of that name, for example ``950PR``.

    Raises:
        UnknownSocError: the name is not in ``SOCS``.
    """
    try:
        return SOCS[name]
    except KeyError:
        raise UnknownSocError(f"SoC {name!r} is unknown: use one of {', '.join(SOCS)}") from None
