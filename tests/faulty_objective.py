"""An objective from outside of bertjax that fails in one process only, with an unexpected error."""

import dataclasses

import jax

from bertjax.objectives.pretraining.sentence_pairs import BERT


@dataclasses.dataclass(frozen=True)
class Faulty(BERT):
    """BERT whose `bind` fails in process 1."""

    def bind(self, store):
        if store is not None and jax.process_index() == 1:
            raise ValueError("a defect in process 1")
        return super().bind(store)
