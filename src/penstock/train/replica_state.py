"""Names of the tensors of replicas that take local steps, in a checkpoint that holds all of them.

`model/NAME` is the anchor, on which all replicas agree: what an export takes, and what a run with
another number of replicas begins with. All else is beside the optimizer's state:

    optimizer/NAME/outer_momentum     on which all replicas agree
    optimizer/NAME/weight@R           inner weights of replica R
    optimizer/NAME/owed@R             what its codec has left out so far
    optimizer/NAME/exp_avg@R          its moments; those of replica 0 have their usual names
    optimizer/NAME/buffer@R           its buffers, likewise

They are sharded as the parameter is, so that a replica may be laid out otherwise when it resumes.
"""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from penstock.train.parallel.parts import sharded_like
from penstock.train.replicas.outer import OuterStep


def with_outer_state(
    tensors: Mapping[str, Tensor],
    params: Mapping[str, nn.Parameter],
    frozen: Collection[str],
    outer: OuterStep,
    exact: bool = True,
) -> dict[str, Tensor]:
    """Return the tensors of a rank (`state_tensors`) under their names in such a checkpoint, and
    the outer state. `params` are trained; `frozen` weights are the same on all replicas.

    With `exact` false: the names of any checkpoint, for a resume that begins at its anchor.
    """
    replica = outer.transport.replica
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "model" and rest in params:
            found |= _of_weight(rest, tensor, params[rest], outer, exact)
        elif not exact or not replica or (kind == "model" and rest in frozen):
            found[name] = tensor
        elif kind == "model":
            found[f"optimizer/{rest}/buffer@{replica}"] = tensor
        else:
            found[f"{name}@{replica}"] = tensor
    return found


def _of_weight(
    name: str, weight: Tensor, param: nn.Parameter, outer: OuterStep, exact: bool
) -> dict[str, Tensor]:
    place = next(place for place in outer.layout.places if place.name == name)
    own = outer.transport.replica

    def part(flat: Tensor) -> Tensor:
        return sharded_like(param, outer.layout.view(flat, place))

    found = {f"model/{name}": part(outer.anchor)}
    if exact:
        found[f"optimizer/{name}/outer_momentum"] = part(outer.velocity)
        found[f"optimizer/{name}/weight@{own}"] = weight
        if outer.owed is not None:
            found[f"optimizer/{name}/owed@{own}"] = part(outer.owed)
    return found
