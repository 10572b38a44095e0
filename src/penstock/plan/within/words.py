"""The answer to "what can this budget train" in words, and as JSON."""

from collections.abc import Sequence
from typing import Any

from penstock.catalog import scaling_laws
from penstock.plan.life.life import DAY_S
from penstock.plan.within.adapting import ADAPT_TOKENS, Adaptation
from penstock.plan.within.best import (
    AffordableModel,
    BudgetAnswer,
    BudgetPlanner,
    deciding_law,
)
from penstock.style import MONEY, TIMES, format_count, format_predicted


def lines(
    planner: BudgetPlanner,
    answer: BudgetAnswer,
    adapted: Adaptation | None,
    notes: Sequence[str] = (),
) -> list[str]:
    """Return what a person reads."""
    best = answer.best
    rows = {
        "within": _limits(planner),
        "best": _model(best),
        "layout": f"{best.job.layout}, {format_count(best.tokens_per_s)} tokens/s",
        "takes": _takes(best),
        "loss": _loss(best),
        "by other laws": _others(best),
        "over-trained": _overtrained(answer),
        "adapting": _adapting(best, adapted),
        "write": _toml(best),
    }
    told = [f"{name:<14}{text}" for name, text in rows.items()]
    return told + [f"{'note':<14}{text}" for text in (*_notes(best), *notes)]


def to_json(
    planner: BudgetPlanner,
    answer: BudgetAnswer,
    adapted: Adaptation | None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    limits, price = planner.limits, planner.price
    best = answer.best
    return {
        "within_usd": limits.usd,
        "days": None if limits.seconds is None else limits.seconds / DAY_S,
        "machine": planner.machine.name,
        "accelerators": planner.machine.accelerators,
        "usd_per_accelerator_hour": price.usd if price else None,
        "price": price.source if price else None,
        "best": best.to_json(),
        "overtrained": answer.overtrained.to_json() if answer.overtrained else None,
        "best_params_by_law": _best_params(best),
        "adapt": None
        if adapted is None
        else {**adapted.to_json(), "better": adapted.loss < best.loss_band()[0]},
        "tried": [one.to_json() for one in answer.tried],
        "law": {"decides": deciding_law().name, "source": deciding_law().source},
        "warnings": [*_notes(best), *notes],
    }


def _limits(planner: BudgetPlanner) -> str:
    limits, price = planner.limits, planner.price
    parts = []
    if limits.usd is not None:
        parts.append(format_predicted(limits.usd, MONEY))
    if limits.seconds is not None:
        parts.append(format_predicted(limits.seconds, TIMES))
    at = f", at {price.usd:g} USD an accelerator-hour ({price.source})" if price else ""
    machine = planner.machine
    return f"{' and '.join(parts)} on {machine.accelerators} × {machine.accelerator}{at}"


def _model(one: AffordableModel) -> str:
    shape = one.job.shape
    return (
        f"{format_count(one.params)} parameters ({shape.layers} layers of {shape.hidden}), "
        f"{format_count(one.tokens)} tokens: {one.tokens / one.params:,.0f} a parameter"
    )


def _takes(one: AffordableModel) -> str:
    money = f", {format_predicted(one.usd, MONEY)}" if one.usd is not None else ""
    ranks = one.job.layout.ranks
    return (
        f"{format_predicted(one.wall_s, TIMES)}{money} on {ranks} × {one.job.machine.accelerator}"
    )


def _loss(one: AffordableModel) -> str:
    low, high = one.loss_band()
    law = deciding_law()
    return (
        f"{one.loss:.2f} nats a token, {low:.2f} to {high:.2f} by the published laws ({law.name}, "
        f"{law.source}, and the fit it corrects)"
    )


def _best_params(best: AffordableModel) -> dict[str, float]:
    flops = scaling_laws.FLOPS_PER_TOKEN * best.params * best.tokens
    return {law.name: law.best_params(flops) for law in scaling_laws.all()}


def _others(best: AffordableModel) -> str:
    """Say what size each law would train with the same compute."""
    sizes = (f"{format_count(n)} ({name})" for name, n in _best_params(best).items())
    return f"the same compute is best spent on {', '.join(sizes)}"


def _overtrained(answer: BudgetAnswer) -> str:
    one, best = answer.overtrained, answer.best
    if one is None:
        return "no smaller model comes within 2 % of this loss"
    more = 100 * (one.loss / best.loss - 1)
    return (
        f"{_model(one)}; loss {one.loss:.2f}, {more:.1f} % more, and "
        f"{best.params / one.params:.1f} × cheaper to run"
    )


def _adapting(best: AffordableModel, adapted: Adaptation | None) -> str:
    if adapted is None:
        return "no open model of the catalog can be adapted within these limits"
    money = f" and {format_predicted(adapted.usd, MONEY)}" if adapted.usd is not None else ""
    size = adapted.weights.shape.params()
    what = (
        f"{adapted.weights.name} ({format_count(size)} parameters, trained on "
        f"{format_count(adapted.weights.tokens)} tokens, {adapted.weights.licence})"
    )
    cost = (
        f"{adapted.kind} on {format_count(ADAPT_TOKENS)} tokens takes "
        f"{format_predicted(adapted.wall_s, TIMES)}{money}"
    )
    if adapted.loss < best.loss_band()[0]:  # below all that the budget's own model may have
        return (
            f"the better buy: {what} has {adapted.loss:.2f} by the same law; {cost}. Train your "
            "own for a language, a domain, a tokenizer or a licence that it does not have"
        )
    if adapted.loss < best.loss:
        return f"about as good: {what} has {adapted.loss:.2f} by the same law; {cost}"
    return f"not better by the law: {what} has {adapted.loss:.2f}; {cost}"


def _toml(one: AffordableModel) -> str:
    shape = one.job.shape
    return (
        f"model.layers={shape.layers} model.hidden={shape.hidden} model.heads={shape.heads} "
        f"model.kv_heads={shape.kv_heads} model.ffn={shape.ffn} model.vocab={shape.vocab} "
        f"model.tied={str(shape.tied).lower()} train.tokens={one.tokens} "
        f"train.batch_tokens={one.job.tokens}"
    )


def _notes(best: AffordableModel) -> list[str]:
    law = deciding_law()
    notes = [
        "losses are of the text and tokenizer of the laws (MassiveText): compare them with each "
        "other, not with your own"
    ]
    if best.params > law.fitted_to_params:
        notes.append(
            f"{format_count(best.params)} parameters: the laws were fitted to models of up to "
            f"{format_count(law.fitted_to_params)}"
        )
    return notes
