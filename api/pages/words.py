"""How the pages spell numbers, times and places."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from urllib.parse import urlencode

from ...kernel.shapes import PfaFamily, PfaShape, Workload
from ..cli.options import shape_options
from ..cli.output import value_text

_FAMILY_DEFAULTS = PfaFamily().to_json()
_UNITS = {"cycles": "cycles", "us": "µs"}


def number(value: float, unit: str = "cycles") -> str:
    """A number with its thousands apart: whole cycles, hundredths of microseconds."""
    return f"{value:,.{0 if unit == 'cycles' else 2}f}"


def cost(value: float, unit: str) -> str:
    """A cost with its unit."""
    return f"{number(value, unit)} {unit_name(unit)}"


def unit_name(unit: str) -> str:
    return _UNITS.get(unit, unit)


def ratio(value: float) -> str:
    """2.0 as ``2.00×``: default's cost over this cost."""
    return f"{value:.2f}×"


def field(value: object) -> str:
    """A field of a configuration as its JSON, which breaks into lines between tiles only."""
    return re.sub(r"(?<=[\d:,]) (?=\d)", "\N{NO-BREAK SPACE}", value_text(value))


def when(time: datetime | str | None) -> str:
    """A time to the minute, in UTC."""
    if not time:
        return ""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def shape_text(of: PfaShape | Workload) -> str:
    """A shape without the fields that are at their defaults."""
    shape = of.shape if isinstance(of, Workload) else of
    text = f"b={shape.b} s2={shape.s2}{_static_text(shape.family)}"
    if isinstance(of, Workload) and of.actual_seq is not None:
        text += f" actual_seq={min(of.actual_seq)}…{max(of.actual_seq)}"
    return text


def family_text(family: PfaFamily) -> str:
    """Every field of a family."""
    return " ".join(f"{name}={value}" for name, value in family.to_json().items())


def _static_text(family: PfaFamily) -> str:
    return "".join(f" {name}={value}" for name, value in _own_fields(family).items())


def _own_fields(family: PfaFamily) -> dict[str, int]:
    return {name: value for name, value in family.to_json().items() if value != _FAMILY_DEFAULTS[name]}


def shape_query(shape: PfaShape) -> str:
    """The query that names a shape, in the API as well."""
    return urlencode({"b": shape.b, "s2": shape.s2, **_own_fields(shape.family)})


def family_key(family: PfaFamily) -> str:
    """A family as one parameter of a query."""
    return ",".join(str(value) for value in family.to_json().values())


def tune_command(shape: PfaShape, soc: str) -> str:
    """The command that tunes a shape."""
    return f"pfatune tune {shape_options(Workload(shape))}{'' if soc == '950PR' else f' --soc {soc}'}"


def tune_curl(shape: PfaShape, soc: str, base: str) -> str:
    """The request that has the service tune a shape."""
    fields = [f'"{name}": {value}' for name, value in {"b": shape.b, "s2": shape.s2}.items()]
    fields += [f'"{name}": {value}' for name, value in _own_fields(shape.family).items()]
    if soc != "950PR":
        fields.append(f'"soc": "{soc}"')
    return f"curl {shlex.quote(f'{base}/tune')} --json '{{{', '.join(fields)}}}'"
