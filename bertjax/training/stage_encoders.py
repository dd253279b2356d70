"""The encoder of each stage, which may be shallower than the model or read positions with another rotary base.

Checks of layers that start a run (`init_layers`) or that a stage adds (progressive stacking) are here too.
"""

from collections.abc import Sequence

from bertjax.models import cut
from bertjax.models.config import EncoderConfig
from bertjax.runtime.errors import UserError
from bertjax.training.config import ROTARY_BASES, Stage


def encoder_at(model: EncoderConfig, stage: Stage) -> EncoderConfig:
    """Return the encoder that a stage trains.

    Args:
      model: architecture at the end of the run.
      stage: the stage, whose settings `check_stages` has accepted.
    """
    bases = {f"block.{name}": base for name in ROTARY_BASES if (base := getattr(stage, name))}
    return model.replace({"layers": stage.layers or model.layers, **bases})


def check_init_layers(init_from: str, init_layers: Sequence[int], model: EncoderConfig, stage: Stage) -> None:
    """Raise UserError if `init_layers` cannot be the first layers of a run.

    Args:
      init_from: the setting.
      init_layers: the setting, layers of the source.
      model: architecture of the run.
      stage: the first stage.
    """
    if not init_layers:
        return
    listed = f"init_layers={list(init_layers)}"
    if not init_from:
        raise UserError(f"{listed} selects layers of init_from, which is empty; set init_from, or init_layers=[]")
    if len(init_layers) != (depth := stage.layers or model.layers):
        raise UserError(
            f"{listed} has {len(init_layers)} entries and the run starts with {depth} layers; list {depth}, or set "
            f"model.layers={len(init_layers)}"
        )
    if moved := cut.moved(model, init_layers):
        raise UserError(f"{listed} moves layers of init_from: {moved}; list a layer of the same kind for each place")


def check_stages(model: EncoderConfig, stages: Sequence[Stage]) -> None:
    """Raise UserError if the stages do not lead to the model, by stacking copies of all layers or another rotary base.

    Args:
      model: architecture at the end of the run.
      stages: stages of the run.
    """
    depths = [stage.layers or model.layers for stage in stages]
    for index, (stage, depth) in enumerate(zip(stages, depths)):
        if stage.frozen_layers > depth:
            raise UserError(
                f"stages.{index}.frozen_layers={stage.frozen_layers} exceeds the {depth} layers of the encoder; "
                f"lower it, {depth} freezes them all"
            )
    for index, (before, after) in enumerate(zip(depths, depths[1:]), 1):
        if after not in (before, 2 * before):
            raise UserError(
                f"stages.{index} has {after} layers and the stage before has {before}; set "
                f"stages.{index}.layers to {before} or {2 * before}"
            )
        if after > before:
            _check_growth(model, index, before, after)
    if depths[-1] != model.layers:
        raise UserError(
            f"stages.{len(depths) - 1}.layers={depths[-1]} must equal model.layers={model.layers}: the last "
            "stage trains the whole model"
        )
    for index, stage in enumerate(stages):
        _check_bases(model, index, stage, is_last=index == len(stages) - 1)


def _check_bases(model: EncoderConfig, index: int, stage: Stage, is_last: bool) -> None:
    """Raise UserError if a stage has a rotary base that the block does not read, or that is not the model's in the end.

    Args:
      index: number of the stage, for the message.
    """
    for name in ROTARY_BASES:
        if not (base := getattr(stage, name)):
            continue
        setting = f"stages.{index}.{name}"
        if name not in model.block.position_settings:
            raise UserError(
                f"{setting}={base:g} has no effect: no layer of this model (model.block.kind={model.block.kind}) reads "
                f"positions with it; set {setting}=0"
            )
        if is_last and base != (own := getattr(model.block, name)):
            raise UserError(
                f"{setting}={base:g} must equal model.block.{name}={own:g}: the last stage trains the model that is "
                f"exported; set {setting}=0, or model.block.{name}={base:g}"
            )


def _check_growth(model: EncoderConfig, index: int, before: int, after: int) -> None:
    """Raise UserError if the layers on top would not compute what the layers that they copy compute."""
    grows, whole = f"stages.{index} stacks {before} layers to {after}", f"stages.{index - 1}.layers={after}"
    # A group is L / G consecutive layers, so doubling L regroups them: 0 1 becomes 0 0 1 1, not 0 1 0 1.
    if model.sharing_groups > 1:
        raise UserError(
            f"{grows}, and model.sharing_groups={model.sharing_groups} would give them the parameters of other groups; "
            f"set model.sharing_groups=1, or {whole}"
        )
    if moved := cut.moved(model, [*range(before), *range(before)]):
        raise UserError(f"{grows}, and copies would compute something else: {moved}; set {whole}")
