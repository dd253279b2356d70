"""Solutions of lesson 4."""

import numpy as np


def wrong_sentences(documents, document, place, draw):
    others = [index for index in range(len(documents)) if index != document]
    other = documents[others[draw.integers(len(others))]]
    same = [sentence for index, sentence in enumerate(documents[document]) if index not in (place, place + 1)]
    return other[draw.integers(len(other))], same[draw.integers(len(same))]


def pairwise_accuracy(true_scores_P, wrong_scores_P):
    true_scores_P, wrong_scores_P = np.asarray(true_scores_P), np.asarray(wrong_scores_P)
    return float(((true_scores_P > wrong_scores_P) + 0.5 * (true_scores_P == wrong_scores_P)).mean())
