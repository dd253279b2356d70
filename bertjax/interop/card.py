"""The model card: architecture, training data, scores, and how to load the model."""

import dataclasses
import json
import re
from typing import Any

from flax.traverse_util import flatten_dict

from bertjax.config.export import Export
from bertjax.config.private_paths import base_name
from bertjax.interop.family import Family
from bertjax.interop.task_heads import CLASSIFICATION, MULTI_LABEL, PIPELINES, REGRESSION, SPAN
from bertjax.runtime.errors import UserError, printable, reason

FILE = "README.md"
# `pipeline_tag` on the Hub for heads that are not in `PIPELINES`.
_TAGS = {"mlm": "fill-mask", SPAN: "question-answering"}
_HEAD = "| | |\n|---|---|\n"
_CARD = """---
library_name: {library}
{header}tags:
- {model_type}
- bertjax
---

# {architecture}

An encoder of the BERT family, written by bertjax. {license}{notes}

{sizes}

A text has at most {longest} tokens, special symbols included: `tokenizer(text, truncation=True)` cuts longer ones.

## Data

{data}

## Numbers

{numbers}

## Load it

{pytorch}{code}{pipeline}{flax}{jax}\
If a text contains a special symbol such as `{mask}`, transformers reads it as the symbol and bertjax as ordinary text.
"""


def _code(title: str, code: str) -> str:
    return f"{title}:\n\n```python\n{code}\n```\n\n"


_PYTORCH = _code(
    "PyTorch{since}",
    """from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = {auto}.from_pretrained("{folder}"{trust})""",
)
_PIPELINE = _code(
    "With the text of an example and the labels of the model",
    """from transformers import pipeline

pipeline("{task}", model="{folder}"{trust})""",
)
# transformers 5 removed the question-answering pipeline, so the card shows the argmax by hand.
_QUESTIONS = _code(
    "The most probable answer to a question, without a limit of its length",
    """inputs = tokenizer("question", "context", return_tensors="pt")
outputs = model(**inputs)
start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))""",
)
# Key of `config.json` with the names of the logits of a head on the mean.
LOGITS = "names_of_logits"
# A head on the mean is a module of sentence-transformers (`sentence_transformers.classifier_on_mean`).
_ON_MEAN = _code(
    "The classifier, with sentence-transformers, whose module 2_Dense it is",
    """import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

model = SentenceTransformer("{folder}")
labels = AutoConfig.from_pretrained("{folder}").{logits}
logits = model.encode(["the text of an example"], convert_to_tensor=True)
scores = {scores}""",
)
_SCORES = {
    CLASSIFICATION: "torch.softmax(logits, dim=-1)",
    MULTI_LABEL: "torch.sigmoid(logits)",
    REGRESSION: "logits[:, 0]",
}
_CODE = """transformers has no such class. `trust_remote_code=True` runs the authors' code, which it downloads from
[{code}](https://huggingface.co/{code}).

"""
# Not for a head on the mean, which is not read back.
_JAX = _code(
    "Only JAX, after `python -m bertjax convert --from={folder} --to=EXPORT`",
    """import bertjax

module, params, tokenizer = bertjax.load("EXPORT")
tokens_BT, examples_BT = tokenizer.rows(["a sentence"], seq_len=16)
hidden_BTD = module.apply({{"params": params}}, tokens_BT, examples_BT=examples_BT).hidden""",
)
_IN_FLAX = ("bert", "albert", "electra", "distilbert", "roberta")
_FLAX = _code(
    "Flax, with a transformers that still has it (4.57)",
    """from transformers import AutoTokenizer, Flax{auto}

model = Flax{auto}.from_pretrained("{folder}", from_pt=True)""",
)


@dataclasses.dataclass(frozen=True)
class About:
    """Facts about a model that only its author knows, and its repository.

    Attributes:
      language: language code of the text, such as `ko`.
      license: license name, such as `apache-2.0`.
      widget: example text for the model's page; [MASK] hides a piece.
      repository: `OWNER/NAME` on the Hugging Face Hub.
      commit: bertjax commit that trained the model.
    """

    language: str = ""
    license: str = ""
    widget: str = ""
    repository: str = ""
    commit: str = ""

    def __post_init__(self):
        for name in ("language", "license"):
            if not re.fullmatch(r"[\w.-]*", getattr(self, name)):
                raise UserError(f"{name} {getattr(self, name)!r} has other characters than letters, digits, - and .")


def text(
    export: Export,
    family: Family,
    parts: frozenset[str],
    longest: int,
    notes: list[str],
    about: About | None = None,
    on_mean: str = "",
) -> str:
    """Return the model card, in Markdown with a YAML header.

    Args:
      export: the model.
      family: its family in transformers, which determines class and tags.
      parts: the exported parts.
      longest: tokens of the longest text that the tokenizer lets through, special symbols included.
      notes: notes about the export, one line each.
      about: facts that the author adds.
      on_mean: the head that is a module of sentence-transformers; empty if there is none.
    """
    about, mask = about or About(), export.tokenizer.piece(export.tokenizer.mask_id)
    folder = about.repository or "FOLDER"
    auto = family.auto_of(parts)
    since = f", with transformers {family.since} or later" if family.since else ""
    trust = ", trust_remote_code=True" if family.code else ""
    # A head on the mean has no pipeline: transformers would open the encoder with a head of random values.
    task = next((task for term, task in PIPELINES.items() if term in parts), "")
    pipeline = _PIPELINE.format(task=task, folder=folder, trust=trust) if task else _QUESTIONS * (SPAN in parts)
    fields = ("vocab_size", "layers", "width", "heads", "feedforward", "max_positions", "norm_epsilon")
    sizes = {field: getattr(export.encoder, field) for field in fields} | {
        "segments": export.encoder.embeddings.segments,
        "tokenizer's fingerprint": export.tokenizer.fingerprint[:16],
    }
    return _CARD.format(
        library="sentence-transformers" if on_mean else "transformers",
        architecture=family.class_of(parts),
        model_type=family.model_type,
        pytorch=_PYTORCH.format(since=since, auto=auto, folder=folder, trust=trust),
        header=_header(about, task or next((tag for part, tag in _TAGS.items() if part in parts), ""), mask),
        license=f"License: {about.license}." if about.license else "No license is given.",
        code=_CODE.format(code=family.code) if family.code else "",
        pipeline=_ON_MEAN.format(folder=folder, logits=LOGITS, scores=_SCORES[on_mean]) if on_mean else pipeline,
        flax=_FLAX.format(auto=auto, folder=folder) if family.model_type in _IN_FLAX else "",
        jax="" if on_mean else _JAX.format(folder=folder),
        notes="".join(f"\n\n{note[0].upper()}{note[1:]}." for note in map(printable, notes)),
        sizes=_rows(sizes),
        longest=longest,
        data=_data(export) + (f"\n| commit of bertjax | `{about.commit}` |" if about.commit and export.numbers else ""),
        numbers=_numbers(export.numbers),
        mask=mask,
    )


def _header(about: About, task: str, mask: str) -> str:
    """Return YAML metadata for the model's page on the Hub."""
    widget = json.dumps(about.widget.replace("[MASK]", mask), ensure_ascii=False)
    values = {"language": about.language, "license": about.license, "pipeline_tag": task}
    # A JSON string is valid YAML. Without the quotes, Norwegian (`no`) would be read as false.
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in values.items() if value]
    return "".join([*lines, f"widget:\n- text: {widget}\n" if about.widget else ""])


def _data(export: Export) -> str:
    """Return a Markdown table with a run's corpus, tokenizer, task and stages."""
    if not export.numbers:
        return "Converted from a Hugging Face checkpoint, which does not record its training data."
    settings = export.settings
    try:
        return _rows(_described(settings, export.numbers.get("steps")))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"the settings of the model are not those of a run ({reason(error)}); export it again from its run"
        ) from error


def _described(settings: dict[str, Any], steps: int | None) -> dict[str, Any]:
    """Return the rows of that table from complete run settings, with the stages of the first `steps` steps."""
    [task, *_], stages, before = settings["tasks"].values(), [], 0
    for stage in settings["stages"]:
        trained = stage["steps"] if steps is None else min(stage["steps"], steps - before)
        before += stage["steps"]
        stages += [f"{trained:,} steps of {stage['batch']} x {stage['seq_len']} tokens"] if trained > 0 else []
    files = [task["examples"]["train"] for task in settings["tasks"].values() if "train" in task["examples"]]
    if files:
        trained_on = {"training file": ", ".join(f"`{base_name(path)}`" for path in files)}
        trained_on |= {"fine-tuned from": f"`{base_name(init)}`"} if (init := settings["init_from"]) else {}
    else:
        data, tokenizer = settings["data"], settings["data"]["tokenizer"]
        corpora = [source["corpus"] for source in data["sources"].values()] or [data["corpus"]]
        described = base_name(tokenizer["model"]) or f"{tokenizer['kind']}, {tokenizer['normalizer']} normalization"
        trained_on = {"corpus": ", ".join(f"`{base_name(corpus)}`" for corpus in corpora), "tokenizer": described}
    return {
        **trained_on,
        "objective": f"{task['objective']['kind']} on {task['examples']['kind']}",
        "stages": "; ".join(stages),
        "seed": settings["seed"],
    }


def _numbers(numbers: dict[str, Any]) -> str:
    """Return a table with held-out scores and the run's cost; the time breakdown (`accounts`) is left out."""
    # Some measurements are texts or lists, which a table of numbers leaves out.
    flat = flatten_dict({name: value for name, value in numbers.items() if name != "accounts"}, sep="/")
    numbers = {name: value for name, value in flat.items() if isinstance(value, (int, float))}
    formatted = {name: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" for name, value in numbers.items()}
    return _rows(formatted) if formatted else "None were recorded."


def _rows(values: dict[str, Any]) -> str:
    """Return a Markdown table. Cells are escaped, since names may come from untrusted files."""
    rows = ([printable(str(cell)).replace("|", "\\|") for cell in row] for row in values.items())
    return _HEAD + "\n".join(f"| {name} | {value} |" for name, value in rows)
