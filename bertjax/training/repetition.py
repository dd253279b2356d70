"""How often text may be repeated before a run or a forecast warns.

Muennighoff et al. (2023, arXiv 2305.16264) find that text read up to 4 times is almost as good as new text, and that
beyond about 40 times it adds nothing. Their models read from left to right; nobody has measured masked ones.
"""

# A source among others can be drawn less often, so the warning comes once repetition costs something.
MOST_EPOCHS_OF_SOURCE = 4
# A whole corpus has no replacement, and BERT read its own 40 times (Devlin et al., 2019, appendix A.2).
MOST_EPOCHS_OF_CORPUS = 40
