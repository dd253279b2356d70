"""The layer of UltraBERT: that of EuroBERT, in which most layers see only their neighborhood.

(transformers 5.24, models/ultrabert/modeling_ultrabert.py.) The last of each three layers is global. ModernBERT's first
one is. Global layers have another rotary base than local ones.
"""

import dataclasses
import math

from bertjax.models.blocks.llama import GroupedBlock
from bertjax.models.local_layers import at_depth, check_local_layers
from bertjax.models.rotary import check_rotary, rotary_at
from bertjax.models.vocabulary_heads import DeepDecoderHead
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class UltraBlock(GroupedBlock):
    """A layer of UltraBERT. The defaults are its own. `key_value_heads`: see `GroupedBlock`.

    Attributes:
      rotary_base: rotary base in global layers.
      local_rotary_base: rotary base in local layers, whose distances are at most `window`.
      window: tokens to either side in local layers; 0 for none.
      global_every: period of global layers: the last in every `global_every` layers is global and the others are local;
        1 if all layers are global.
      decoder_width: width between the two dense layers of the masked-LM head.
    """

    kind: str = dataclasses.field(init=False, default="ultrabert")
    rotary_base: float = 2_560_000.0
    local_rotary_base: float = 10_000.0
    window: int = 128
    global_every: int = 3
    decoder_width: int = 768

    has_pooler = False
    masked_lm_head = DeepDecoderHead

    @property
    def position_settings(self):
        return ("rotary_base", "local_rotary_base") if self.window else ("rotary_base",)

    def check(self, config):
        super().check(config)
        check_rotary(config, "local_rotary_base")
        check_local_layers(self)
        if self.decoder_width < 1:
            raise UserError(f"model.block.decoder_width={self.decoder_width} must be at least 1")

    def positions(self, config, positions_BT, segments_BT):
        """Return the rotations in global layers and, if there are local layers, in those."""
        bases = [getattr(self, name) for name in self.position_settings]
        return tuple(rotary_at(positions_BT, config.head_channels, base) for base in bases)

    def at_depth(self, number, visibility, positions):
        return at_depth(self, (number + 1) % self.global_every == 0, visibility, positions)

    def kind_at(self, number):
        return "global" if self._is_global(number) else "local"

    def most_visible(self, layer):
        # A local layer attends to a full window, also at example ends.
        return math.inf if self._is_global(layer) else 2 * self.window + 1

    def _is_global(self, number: int) -> bool:
        return (number + 1) % self.global_every == 0
