"""Limits on repeated text, beyond which a run or a forecast warns.

Muennighoff et al. (2023, arXiv 2305.16264) find that text repeated up to 4 times is almost as good as new text, and
that beyond about 40 times it adds nothing. They measured causal language models; there are no measurements for masked
ones.
"""

# One source of several can be drawn less often, so warn as soon as repetition costs something.
MOST_EPOCHS_OF_SOURCE = 4
# A whole corpus cannot be replaced, and BERT read its corpus 40 times (Devlin et al., 2019, appendix A.2).
MOST_EPOCHS_OF_CORPUS = 40
