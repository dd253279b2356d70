"""The tasks of `benchmarks/arms/trainer.py`: the model of transformers, its inputs, and predictions from its outputs.

Windows start at the same distance as in bertjax. bertjax's stride is that distance; transformers' stride is the number
of tokens that two windows share.
"""

from typing import Any

import numpy as np

_NO_LABEL = -100
_CONTEXT = 1  # the number of the second text


class Texts:
    """Predicts a class or a number for a text or a pair of texts. Each record is one input."""

    model, collator = "AutoModelForSequenceClassification", "DataCollatorWithPadding"

    def __init__(self, job: dict[str, Any], tokenizer: Any):
        self.job, self.tokenizer = job, tokenizer
        kind = "single_label_classification" if job["classes"] else "regression"
        self.model_options = {"num_labels": job["classes"] or 1, "problem_type": kind}

    def train(self) -> list[dict]:
        records = self.job["train"]
        return [inputs | {"labels": record["label"]} for inputs, record in zip(self._inputs(records), records)]

    def heldout(self) -> list[dict]:
        return self._inputs(self.job["heldout"])

    def _inputs(self, records: list[dict]) -> list[dict]:
        columns = [list(column) for column in zip(*(record["texts"] for record in records))]
        encoded = self.tokenizer(*columns, truncation=True, max_length=self.job["seq_len"])
        return [{name: values[index] for name, values in encoded.items()} for index in range(len(records))]

    def predictions(self, outputs: np.ndarray) -> list:
        return (outputs.argmax(axis=-1) if self.job["classes"] else outputs[:, 0]).tolist()


class Words:
    """Predicts a tag for each word at its first piece, in the window in which that piece has the most context."""

    model, collator = "AutoModelForTokenClassification", "DataCollatorForTokenClassification"

    def __init__(self, job: dict[str, Any], tokenizer: Any):
        self.job, self.tokenizer = job, tokenizer
        self.model_options = {"num_labels": job["classes"]}
        words = sorted({word for split in ("train", "heldout") for record in job[split] for word in record["words"]})
        pieces = tokenizer(words, add_special_tokens=False)["input_ids"]
        # A word without any token still needs a tag.
        self._said = {word: word if ids else tokenizer.unk_token for word, ids in zip(words, pieces)}

    def train(self) -> list[dict]:
        inputs, places = self._windows(self.job["train"])
        for window_inputs in inputs:
            window_inputs["labels"] = [_NO_LABEL] * len(window_inputs["input_ids"])
        for record, of_words in zip(self.job["train"], places):
            for tag, (window, token) in zip(record["tags"], of_words, strict=True):
                inputs[window]["labels"][token] = tag
        return inputs

    def heldout(self) -> list[dict]:
        inputs, self._places = self._windows(self.job["heldout"])
        return inputs

    def _windows(self, records: list[dict]) -> tuple[list[dict], list[list[tuple[int, int]]]]:
        """Return the inputs of all windows, and (window, token) of each word of each record."""
        room = self.job["seq_len"] - self.tokenizer.num_special_tokens_to_add()
        encoded = self.tokenizer(
            [[self._said[word] for word in record["words"]] for record in records],
            is_split_into_words=True,
            truncation=True,
            max_length=self.job["seq_len"],
            stride=room - min(self.job["stride"], room),
            return_overflowing_tokens=True,
        )
        best: list[dict[int, tuple]] = [{} for _ in records]
        for window, record in enumerate(encoded["overflow_to_sample_mapping"]):
            words = encoded.word_ids(window)
            for token, word in enumerate(words):
                if word is not None and word != words[token - 1]:
                    # As in `run_squad.py`: if two windows give equal context, the longer one wins, then the first.
                    context = min(token, len(words) - 1 - token) + 0.01 * len(words)
                    place = (context, -window), (window, token)
                    best[record][word] = max(place, best[record].get(word, place))
        inputs = [_input(self.tokenizer, encoded, window) for window in range(len(encoded["input_ids"]))]
        return inputs, [[of_words[word][1] for word in sorted(of_words)] for of_words in best]

    def predictions(self, outputs: np.ndarray) -> list:
        guesses = outputs.argmax(axis=-1)
        return [[int(guesses[place]) for place in of_words] for of_words in self._places]


class Questions:
    """Predicts a span of the context by the published recipe, `run_qa.py` of transformers."""

    model, collator = "AutoModelForQuestionAnswering", "DataCollatorWithPadding"
    model_options: dict[str, Any] = {}

    def __init__(self, job: dict[str, Any], tokenizer: Any):
        self.job, self.tokenizer = job, tokenizer

    def train(self) -> list[dict]:
        return [
            inputs | dict(zip(("start_positions", "end_positions"), _span(record, characters)))
            for record in self.job["train"]
            for inputs, characters in self._windows(record)
        ]

    def heldout(self) -> list[dict]:
        inputs, self._characters = [], []
        for number, record in enumerate(self.job["heldout"]):
            for window_inputs, characters in self._windows(record):
                inputs.append(window_inputs)
                self._characters.append((number, characters))
        return inputs

    def _windows(self, record: dict) -> list[tuple[dict, list]]:
        """Return the inputs of each window, with each token's characters [begin, stop) of the context, or None."""
        encoded = self.tokenizer(record["question"], add_special_tokens=False, return_offsets_mapping=True)
        question_spans = encoded["offset_mapping"][: self.job["max_question"]]
        room = self.job["seq_len"] - self.tokenizer.num_special_tokens_to_add(pair=True) - len(question_spans)
        encoded = self.tokenizer(
            record["question"][: max((stop for _, stop in question_spans), default=0)],
            record["context"],
            truncation="only_second",
            max_length=self.job["seq_len"],
            stride=room - min(self.job["stride"], room),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        windows = []
        for window, offsets in enumerate(encoded["offset_mapping"]):
            texts = encoded.sequence_ids(window)
            characters = [span if text == _CONTEXT else None for span, text in zip(offsets, texts)]
            windows.append((_input(self.tokenizer, encoded, window), characters))
        return windows

    def predictions(self, outputs: tuple[np.ndarray, np.ndarray]) -> list:
        best = [(-np.inf, 0, 0)] * len(self.job["heldout"])
        for (number, characters), starts, ends in zip(self._characters, *outputs, strict=True):
            best[number] = max(best[number], self._best(characters, starts, ends))
        return [record["context"][begin:stop] for record, (_, begin, stop) in zip(self.job["heldout"], best)]

    def _best(self, characters: list, starts: np.ndarray, ends: np.ndarray) -> tuple[float, int, int]:
        """Return (score, begin, stop) of the best span between the `nbest` best first and last tokens of a window."""
        spans = [(-np.inf, 0, 0)]
        # The logits continue over the padding up to the longest window.
        firsts, lasts = (np.argsort(-logits[: len(characters)])[: self.job["nbest"]] for logits in (starts, ends))
        for first in firsts:
            for last in lasts:
                if characters[first] and characters[last] and 0 <= last - first < self.job["longest"]:
                    spans.append((float(starts[first] + ends[last]), characters[first][0], characters[last][1]))
        return max(spans)


TASKS = {"labeled_text": Texts, "tagged": Words, "questions": Questions}


def _input(tokenizer: Any, encoded: Any, window: int) -> dict:
    return {name: encoded[name][window] for name in tokenizer.model_input_names}


def _span(record: dict, characters: list) -> tuple[int, int]:
    """Return the first and last token of the answer; both are 0, [CLS], if the window lacks a part of it."""
    begin, stop = record["begin"], record["begin"] + len(record["answer"])
    inside = [token for token, span in enumerate(characters) if span]
    if characters[inside[0]][0] > begin or characters[inside[-1]][1] < stop:
        return 0, 0
    return max(t for t in inside if characters[t][0] <= begin), min(t for t in inside if characters[t][1] >= stop)
