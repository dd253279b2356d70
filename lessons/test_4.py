"""Grade lesson 4: `pytest lessons/test_4.py`."""

import copy

import numpy as np

# A sentence is a list of tokens: as many as its place in the document + 1, all alike.
DOCUMENTS = [[[f"{document}.{place}"] * (place + 1) for place in range(4 + document)] for document in range(3)]


def drawn(wrong_sentences, document, place):
    draw = np.random.default_rng(0)
    documents = copy.deepcopy(DOCUMENTS)
    pairs = []
    for _ in range(300):
        pairs.append([sentence[0] for sentence in wrong_sentences(documents, document, place, draw)])
        assert documents == DOCUMENTS, "documents was changed: the next call needs it. Work on a copy"
    return [set(sentences) for sentences in zip(*pairs)]


def names(document):
    return [sentence[0] for sentence in DOCUMENTS[document]]


def test_the_first_is_of_another_document(wrong_sentences):
    for document in range(3):
        others, _ = drawn(wrong_sentences, document, 1)
        assert not others & set(names(document)), "the first sentence may be from the same document: exclude it"
        everything = {sentence for index in range(3) if index != document for sentence in names(index)}
        assert others == everything, f"in 300 draws {sorted(everything - others)} never came: draw from all others"


def test_the_second_does_not_follow(wrong_sentences):
    for document, place in ((0, 0), (1, 2), (2, 4)):
        _, same = drawn(wrong_sentences, document, place)
        sentences = names(document)
        assert same <= set(sentences), "the second sentence is not from the same document"
        assert sentences[place + 1] not in same, "the second sentence may be the true next one: then it is not wrong"
        assert sentences[place] not in same, "the second sentence may be A itself"
        assert same == set(sentences) - set(sentences[place : place + 2]), "some places are never drawn"


def test_equal_scores_are_half_right(pairwise_accuracy):
    blind = pairwise_accuracy(np.zeros(10), np.zeros(10))
    assert blind != 1.0, "a judge with the same score for all is right in 100%: >= counts ties as right"
    assert blind != 0.0, "a judge with the same score for all is right in 0%: > counts ties as wrong"
    assert blind == 0.5, f"a judge with the same score for all is right in half of the cases, not in {blind:.0%}"
    share = pairwise_accuracy(np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 3.0, 2.0, 1.0]))
    assert share == 0.625, f"of four pairs two are right, one is wrong and one is a tie: 62.5%, not {share:.1%}"


def test_only_the_order_counts(pairwise_accuracy):
    true, wrong = np.array([-5.0, 0.1, 7.0, 9.0]), np.array([-6.0, 0.2, 6.9, 0.0])
    share = pairwise_accuracy(true, wrong)
    assert share == 0.75, f"three of four true scores are higher than their partner: 75%, not {share:.0%}"
