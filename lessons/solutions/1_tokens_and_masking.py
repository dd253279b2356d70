"""Solutions of lesson 1."""

import numpy as np


def wordpiece(word, vocabulary):
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)  # the longest piece first
        end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def mask_tokens(tokens_T, is_special_T, mask_id, vocab_size, draw, rate=0.15):
    is_chosen_T = (draw.random(len(tokens_T)) < rate) & ~is_special_T
    # One number decides between three cases, so that their shares add up to 1.
    case_T = draw.random(len(tokens_T))
    shown_T = np.where(is_chosen_T & (case_T < 0.8), mask_id, tokens_T)
    random_T = draw.integers(vocab_size, size=len(tokens_T))
    return np.where(is_chosen_T & (case_T >= 0.9), random_T, shown_T), is_chosen_T
