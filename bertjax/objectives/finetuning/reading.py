"""Inputs for fine-tuning heads: the last hidden states, or a learned mix over all layers (as in ELMo)."""

import jax

from bertjax.models.mixing import ScalarMix, encode_layers
from bertjax.models.model import HeadSpec, Model
from bertjax.objectives.base import Arrays
from bertjax.runtime.errors import UserError

READS = LAST, MIX = ("last", "mix")
# Metadata of settings that decide how a head reads hidden states. A teacher in distillation keeps its own.
OF_HEAD = {"is_of_head": True}


def check_reads(reads: str) -> None:
    """Raise UserError unless `objective.reads` is known."""
    if reads not in READS:
        raise UserError(f"objective.reads={reads!r} is unknown; choose one of {', '.join(READS)}")


def mix_head(reads: str) -> dict[str, HeadSpec]:
    """Return the layer-mixing head, if `reads` needs it."""
    return {MIX: HeadSpec(ScalarMix, reads_all_layers=True)} if reads == MIX else {}


def mixed(model: Model, batch: Arrays) -> jax.Array:
    """Device: return the mix over all layers, float32 [B, T, D]."""
    return model.head(MIX, encode_layers(model, batch))
