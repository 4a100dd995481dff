"""How ``pfatune portfolio`` tells what it chose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import output

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ...autotune.portfolio import Choice
    from ...kernel.config import KernelConfig
    from .portfolio_choice import Found


def print_report(out: Console, found: Found) -> None:
    """Every shape with its regret, and what the whole comes to."""
    from ...autotune.portfolio import median, worst

    family, environment, chosen = found.family, found.environment, found.chosen
    name = " ".join(f"{field}={value}" for field, value in family.to_json().items())
    out.print(f"Portfolio of {name} on {environment.soc}, in {output.UNIT_NAMES[environment.backend]}", style="bold")
    out.print(_shape_table(found))
    out.print()
    limit = f"at most {_percent(found.asked.limit)}"
    asked = limit if found.asked.max_configs is None else f"{limit}, or the best {found.asked.max_configs}"
    rows = {
        "configurations": f"{len(chosen.configs)} for {len(found.costs.sizes)} shapes, of {len(found.costs.configs)}",
        "regret": f"worst {_percent(chosen.worst)}, mean {_percent(_mean(found))}; asked: {asked}",
        "left out": f"median {_percent(median(found.left_out))}, worst {_percent(worst(found.left_out))}",
        "rule": "the configuration of the nearest of the shapes above, by |log2 b/b'| + 2 |log2 s2/s2'|",
    }
    if not found.left_out:
        rows["left out"] = "unknown: that takes two shapes"
    if not chosen.proven:
        rows["search"] = "ended early: a better portfolio may exist"
    rows["stored in"] = f"{found.database}, served as portfolio" if found.stored else "nothing is stored"
    out.print(output.facts(rows))
    out.print()
    out.print("  configuration, and how many of the shapes get it", style="dim")
    out.print(output.facts({config.digest: str(count) for config, count in _counts(found)}))
    if environment.backend == "sim":
        out.print(f"\n{output.COST_MODEL_NOTE}", style="dim")


def print_document(found: Found) -> None:
    """The last document of ``--json``."""
    from ...autotune.portfolio import median, worst

    environment, chosen = found.environment, found.chosen
    output.print_json(
        {
            "event": "result",
            "family": found.family.to_json(),
            "soc": environment.soc,
            "backend": environment.backend,
            "unit": environment.unit,
            "environment": {**environment.to_json(), "digest": environment.digest},
            "database": found.database or None,
            "stored": found.stored.id if found.stored else None,
            "asked": {"regret": found.asked.limit, "max_configs": found.asked.max_configs},
            "proven": chosen.proven,
            "worst_regret": chosen.worst,
            "mean_regret": _mean(found),
            "left_out": {"median": median(found.left_out), "worst": worst(found.left_out)},
            "note": output.COST_MODEL_NOTE if environment.backend == "sim" else "",
            "configs": [
                {"config": config.to_json(), "config_digest": config.digest, "shapes": count}
                for config, count in _counts(found)
            ],
            "shapes": [_shape_document(*row) for row in _rows(found)],
            "anchors": [{"b": b, "s2": s2, "config_digest": config.digest} for b, s2, config in chosen.anchors],
        }
    )


def _shape_table(found: Found) -> RenderableType:
    table = output.plain_table("b", "s2", "config", "cost", "best cost", "regret", "left out")
    for column in (0, 1, 3, 4, 5, 6):
        table.columns[column].justify = "right"
    for choice, cost, best, left_out in _rows(found):
        table.add_row(
            str(choice.size[0]),
            str(choice.size[1]),
            choice.config.digest,
            "unknown" if cost is None else _cost(cost, found.environment.backend),
            _cost(best, found.environment.backend),
            _percent(choice.regret),
            _percent(left_out.regret) if left_out else "",
        )
    return output.indented(table)


def _rows(found: Found) -> Iterator[tuple[Choice, float | None, float, Choice | None]]:
    """Of each shape: what it gets, its cost, the least one, and what it gets where it is left out."""
    left_out = {choice.size: choice for choice in found.left_out}
    for choice, best in zip(found.chosen.choices, found.costs.best, strict=True):
        yield choice, found.costs.cost(choice.config, choice.size), best, left_out.get(choice.size)


def _shape_document(choice: Choice, cost: float | None, best: float, left_out: Choice | None) -> dict[str, Any]:
    return {
        "b": choice.size[0],
        "s2": choice.size[1],
        "config_digest": choice.config.digest,
        "cost": cost,
        "best_cost": best,
        "regret": choice.regret,
        "left_out_digest": left_out.config.digest if left_out else None,
        "left_out_regret": left_out.regret if left_out else None,
    }


def _counts(found: Found) -> list[tuple[KernelConfig, int]]:
    served = [choice.config for choice in found.chosen.choices]
    return [(config, served.count(config)) for config in found.chosen.configs]


def _mean(found: Found) -> float | None:
    regrets = [choice.regret for choice in found.chosen.choices if choice.regret is not None]
    return sum(regrets) / len(regrets) if len(regrets) == len(found.chosen.choices) else None


def _cost(cost: float, backend: str) -> str:
    return output.cost_text(cost, backend).split(" ")[0]


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"
