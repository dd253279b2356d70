"""Solutions of lesson 5."""

import numpy as np


def previous_token(attention_LBHTT):
    # offset=-1: row i, column i - 1. The first token is not in this diagonal.
    return np.diagonal(attention_LBHTT, offset=-1, axis1=3, axis2=4).mean(axis=(1, 3))


def probe(train_states_ND, train_labels_N, test_states_ND, test_labels_N):
    def with_bias(states_ND):
        return np.concatenate([states_ND, np.ones((len(states_ND), 1))], axis=1)

    weights, *_ = np.linalg.lstsq(with_bias(train_states_ND), 2.0 * np.asarray(train_labels_N) - 1, rcond=None)
    answers_N = with_bias(test_states_ND) @ weights > 0
    constant = round(np.mean(train_labels_N))
    return (answers_N == test_labels_N).mean(), (np.asarray(test_labels_N) == constant).mean()
