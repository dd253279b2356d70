"""Models as transformers writes them, each with the tokenizer of its own kind, and what transformers answers.

The reference is always the other library on the original folder: its tokenizer lays out the rows, its class computes
the logits.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from bertjax.data.labeled.base import encoded
from bertjax.inference.base import run
from bertjax.inference.onnx import OnnxModel, outputs_of
from bertjax.inference.predictor import Predictor
from bertjax.interop import huggingface, onnx
from tests.interop import published

LONGEST = 128
TEXTS = ["The king was old.", "She said, no, and the whole company of travelers went away.", "No"]
SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
NARROW = {"embedding_size": 16}
FAMILIES = {  # {model_type: (stem of the classes, kind of the tokenizer, settings)}
    "bert": ("Bert", "wordpiece", SIZES),
    "albert": ("Albert", "albert", SIZES | NARROW),
    "electra": ("Electra", "wordpiece", SIZES | NARROW),
    "distilbert": ("DistilBert", "wordpiece", {"n_layers": 2, "dim": 32, "n_heads": 2, "hidden_dim": 48}),
    "roberta": ("Roberta", "byte_bpe", SIZES | {"type_vocab_size": 1}),
    "xlnet": ("XLNet", "xlnet", {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48}),
    "mobilebert": (
        "MobileBert",
        "wordpiece",
        SIZES | NARROW | {"intra_bottleneck_size": 16, "num_feedforward_networks": 2},
    ),
    "xlm-roberta": ("XLMRoberta", "xlm-roberta", SIZES | {"type_vocab_size": 1}),
    "camembert": ("Camembert", "camembert", SIZES | {"type_vocab_size": 1}),
    "deberta-v2": (
        "DebertaV2",
        "deberta-v2",
        SIZES
        | {"relative_attention": True, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True}
        | {
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "legacy": False,
            "tie_word_embeddings": False,
        },
    ),
    "mpnet": ("MPNet", "mpnet", SIZES),
    "modernbert": ("ModernBert", "modernbert", SIZES | {"num_hidden_layers": 4, "local_attention": 8}),
}

if hasattr(transformers, "EuroBertModel"):  # from transformers 5 on
    FAMILIES["eurobert"] = ("EuroBert", "eurobert", SIZES | {"num_key_value_heads": 1})


class Head(NamedTuple):
    """A head of transformers: the end of the name of its class, and its settings."""

    suffix: str
    settings: dict[str, Any] = {}


HEADS = {
    "pretrained": Head("ForMaskedLM"),
    "classification": Head("ForSequenceClassification", {"num_labels": 3}),
    "multi_label": Head("ForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
    "regression": Head("ForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "cross_encoder": Head("ForSequenceClassification", {"num_labels": 1}),
    "tagging": Head("ForTokenClassification", {"num_labels": 3}),
    "span": Head("ForQuestionAnswering"),
    "multiple_choice": Head("ForMultipleChoice"),
}
_OTHER_SUFFIXES = {
    ("xlnet", "pretrained"): "LMHeadModel",
    ("xlnet", "span"): "ForQuestionAnsweringSimple",
    ("electra", "pretrained"): "ForPreTraining",
}
_PER_TOKEN = ("pretrained", "tagging", "span")


class Foreign(NamedTuple):
    """A folder of transformers with its tokenizer and model."""

    folder: Path
    tokenizer: Any
    model: torch.nn.Module


def make(family: str, head: str, folder: Path) -> Foreign:
    """Write a folder of a family with random weights, large enough that layout, segments and every token matter."""
    stem, kind, sizes = FAMILIES[family]
    published.write(folder, kind, model_max_length=LONGEST)
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    opened.save_pretrained(folder)
    suffix = _OTHER_SUFFIXES.get((family, head), HEADS[head].suffix)
    # RoBERTa counts positions from the row after that of its padding, and XLNet has none.
    first = opened.pad_token_id + 1 if kind in _COUNTED else 0
    rows = {} if family == "xlnet" else {"max_position_embeddings": LONGEST + first}
    config = getattr(transformers, f"{stem}Config")(
        vocab_size=len(opened), pad_token_id=opened.pad_token_id, **sizes, **rows, **HEADS[head].settings
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{stem}{suffix}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        model.get_input_embeddings().weight[opened.pad_token_id] = 0.0  # as PyTorch keeps it; MobileBERT reads it
    model.save_pretrained(folder)
    return Foreign(folder, opened, model)


_COUNTED = ("byte_bpe", "xlm-roberta", "camembert", "mpnet")


def groups(head: str) -> list[tuple[list[str], list[str] | None]]:
    """Return the texts and pairs that a model with a head reads: (first texts, second texts)."""
    pairs = (TEXTS, TEXTS[::-1])
    return [pairs] if head in ("span", "multiple_choice") else [(TEXTS, None), pairs]


def rows(opened, first: list[str], second: list[str] | None) -> dict[str, torch.Tensor]:
    """Return the inputs of a model, with segments as transformers 4 gives them.

    In transformers 5 the classes of ALBERT and XLNet give none by default (`model_input_names`), so that models that
    were trained with two take both texts of a pair for one, and XLNet leaves its term of segments out.
    """
    segments = {"return_token_type_ids": True} if type(opened).__name__.startswith(("Albert", "XLNet")) else {}
    return opened(first, second, padding=True, return_tensors="pt", **segments)


def logits(opened, model, head: str) -> Iterator[np.ndarray]:
    """Yield the logits of each group of texts: a row each, or a token each without padding."""
    for first, second in groups(head):
        inputs = rows(opened, first, second)
        with torch.no_grad():
            if head == "multiple_choice":
                outputs = model(**{name: tensor[None] for name, tensor in inputs.items()})
                yield outputs.logits[0][:, None].numpy()
                continue
            outputs = model(**inputs)
        values = [outputs.start_logits, outputs.end_logits] if head == "span" else [outputs.logits]
        is_token = inputs["attention_mask"].numpy() > 0
        for value in values:
            yield value.numpy()[is_token] if head in _PER_TOKEN else value.numpy()


def difference(ours: Iterator[np.ndarray], theirs: Iterator[np.ndarray]) -> float:
    """Return the largest absolute difference."""
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


def logits_of_onnx(foreign: Foreign, head: str, path: Path) -> Iterator[np.ndarray]:
    """Yield the same logits of an ONNX file of the folder, on the rows of the tokenizer of transformers."""
    import onnxruntime

    onnx.write(path, huggingface.read(foreign.folder)[0])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    for first, second in groups(head):
        inputs = {name: array.numpy() for name, array in rows(foreign.tokenizer, first, second).items()}
        inputs.setdefault("token_type_ids", np.zeros_like(inputs["input_ids"]))
        computed = session.run(None, {name: inputs[name] for name in names})
        named = dict(zip([node.name for node in session.get_outputs()], computed, strict=True))
        is_token = inputs["attention_mask"] > 0
        for name, value in named.items():
            if name.endswith("logits"):
                yield value[is_token] if head in _PER_TOKEN else value


def answers_of_file(head: str, path: Path, reference: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what an ONNX file answers with its own tokenizer, and the same from the logits of transformers."""
    file = OnnxModel(path)
    for (first, second), expected in zip(groups(head), reference, strict=True):
        records: list[dict] = [{} for _ in first]
        examples = encoded(first, second, {}, records, file.tokenizer, file.max_tokens)
        [outputs] = run(file, file.task(), examples).values()
        yield outputs, outputs_of(file.description, expected)[1]


def logits_of_what_is_written_back(foreign: Foreign, head: str, folder: Path) -> Iterator[np.ndarray]:
    """Yield the same logits of the folder that bertjax writes, with its tokenizer."""
    huggingface.write(folder, huggingface.read(foreign.folder)[0])
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    yield from logits(opened, type(foreign.model).from_pretrained(folder).eval(), head)


def answers(foreign: Foreign, head: str) -> Iterator[tuple[Any, Any]]:
    """Yield what bertjax predicts for each text or pair, and the same from the logits of transformers."""
    ours, _ = huggingface.read(foreign.folder)
    if head == "pretrained":
        yield from _filled(foreign, Predictor(ours)) if hasattr(foreign.model, "get_output_embeddings") else ()
        return
    [task] = ours.settings["tasks"].values()
    reference = logits(foreign.tokenizer, foreign.model, head)
    for first, second in groups(head):
        if head == "multiple_choice":
            names = ["0", "1", "2"]
            task["objective"]["classes"] = task["examples"]["choices"] = names
            record = {"context": TEXTS[0]} | dict(zip(names, TEXTS[::-1], strict=True))
            inputs = rows(foreign.tokenizer, [TEXTS[0]] * len(TEXTS), TEXTS[::-1])
            with torch.no_grad():
                scores = foreign.model(**{name: tensor[None] for name, tensor in inputs.items()}).logits[0].numpy()
            [answer] = Predictor(ours).predict([record])
            yield answer["probabilities"], _softmax(scores)
        elif head == "span":
            task["objective"]["nbest"] = LONGEST  # all tokens: random logits have no few best ones
            task["examples"]["max_question"] = LONGEST // 2  # a question is not cut
            records = [{"question": a, "context": b} for a, b in zip(first, second, strict=True)]
            for record, answer in zip(records, Predictor(ours).predict(records), strict=True):
                yield answer["prediction"], _span(foreign, record)
        elif head == "tagging":
            if second is None:
                for text, answer in zip(first, Predictor(ours).predict(first), strict=True):
                    yield answer["prediction"], _tags(foreign, text, answer["words"])
        else:
            task["examples"] |= {"text": "a"} | ({} if second is None else {"pair": "b"})
            records = [{"a": text} for text in first]
            if second is not None:
                records = [{"a": a, "b": b} for a, b in zip(first, second, strict=True)]
            scores = {"classification": _softmax, "multi_label": _sigmoid, "cross_encoder": _sigmoid}
            for answer, row in zip(Predictor(ours).predict(records), next(reference), strict=True):
                probabilities = answer.get("probabilities", {"": answer["prediction"]})
                yield list(probabilities.values()), scores.get(head, lambda row: row)(row)


def _filled(foreign: Foreign, predictor: Predictor) -> Iterator[tuple[Any, Any]]:
    mask = foreign.tokenizer.mask_token
    for text in (f"The {mask} was old.", f"{mask} king went {mask}"):
        inputs = rows(foreign.tokenizer, [text], None)
        columns = torch.nonzero(inputs["input_ids"][0] == foreign.tokenizer.mask_token_id)[:, 0]
        if foreign.model.config.model_type == "xlnet":  # each mask is predicted from all tokens that are not masked
            length = inputs["input_ids"].shape[1]
            hidden = torch.zeros(1, length, length)
            hidden[:, :, columns] = 1.0
            inputs |= {"perm_mask": hidden, "target_mapping": torch.eye(length)[columns][None]}
        with torch.no_grad():
            scores = foreign.model(**inputs).logits[0]
        scores = scores if len(scores) == len(columns) else scores[columns]
        [prediction] = predictor.fill([text.replace(mask, "[MASK]")], top=5)
        for guesses, row in zip(prediction["masks"], scores.numpy(), strict=True):
            yield [guess["probability"] for guess in guesses], np.sort(_softmax(row))[:-6:-1]


def _span(foreign: Foreign, record: dict[str, str]) -> str:
    """Return the span with the highest sum of logits, of at most 30 tokens; neither end is a token of spaces only."""
    offsets = foreign.tokenizer(*record.values(), return_offsets_mapping=True)["offset_mapping"]
    inputs = rows(foreign.tokenizer, *([text] for text in record.values()))
    with torch.no_grad():
        outputs = foreign.model(**inputs)
    texts = [record["context"][start:stop].strip() for start, stop in offsets]
    places = [place for place, part in enumerate(inputs.sequence_ids()) if part == 1 and texts[place]]
    spans = [(i, j) for i in places for j in places if i <= j < i + 30]
    start, end = max(spans, key=lambda span: float(outputs.start_logits[0, span[0]] + outputs.end_logits[0, span[1]]))
    return record["context"][offsets[start][0] : offsets[end][1]].strip()


def _tags(foreign: Foreign, text: str, words: list[str]) -> list[str]:
    """Return the tag of the first token of each word: in SentencePiece that may be the sign of the space before it."""
    offsets = foreign.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    inputs = rows(foreign.tokenizer, [text], None)
    with torch.no_grad():
        scores = foreign.model(**inputs).logits[0]
    places = [place for place, part in enumerate(inputs.sequence_ids()) if part == 0]
    tags, end = [], 0
    for word in words:
        place = next(place for place in places if offsets[place][1] > end)
        end = text.index(word, end) + len(word)
        tags.append(foreign.model.config.id2label[int(scores[place].argmax())])
    return tags


def _softmax(row: np.ndarray) -> np.ndarray:
    return torch.softmax(torch.from_numpy(np.asarray(row)), dim=-1).numpy()


def _sigmoid(row: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-row))
