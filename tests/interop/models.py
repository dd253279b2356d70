"""Small models of every architecture that bertjax converts."""

import itertools

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from bertjax.config import private_paths
from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.interop import families, roberta
from bertjax.models import vocabulary
from tests import batches

SIZES = {"layers": 2, "width": 16, "heads": 2, "feedforward": 24, "max_positions": 20, "embeddings": {"segments": 3}}
# Settings of each family that differ from BERT's.
OWN = {
    "bert": {},
    "albert": {
        "layers": 4,
        "embeddings": {"width": 8, "segments": 3},
        "activation": "gelu_tanh",
        "sharing": "all",
        "sharing_groups": 2,
    },
    "electra": {"embeddings": {"width": 8, "segments": 3}, "pooler_activation": "gelu"},
    "distilbert": {"embeddings": {"segments": 0}, "norm_epsilon": 1e-12, "pooler_activation": "relu"},
    "roberta": {"embeddings": {"segments": 0, "position_offset": 1}},
    "xlnet": {
        "block": {"kind": "xlnet"},
        "embeddings": {"kind": "xlnet"},
        "max_positions": 512,
        "attention_dropout": 0.2,
    },
    "mobilebert": {
        "embeddings": {"kind": "mobilebert", "width": 8, "segments": 3},
        "block": {"kind": "mobilebert", "inner_width": 8, "feedforwards": 2},
        "activation": "relu",
    },
    "modernbert": {
        "layers": 4,
        "block": {"kind": "modern", "window": 3},
        "embeddings": {"positions": "none", "segments": 0},
    },
    "eurobert": {
        "block": {"kind": "llama", "key_value_heads": 1},
        "embeddings": {"kind": "words"},
        "attention_dropout": 0.2,
    },
    "neobert": {
        "block": {"kind": "llama", "decoder_bias": True, "pooler": True},
        "embeddings": {"kind": "words"},
        "attention_dropout": 0.2,
    },
    "deberta-v2": {
        "block": {"kind": "deberta", "buckets": 4, "max_distance": 12},
        "embeddings": {"positions": "none", "segments": 0},
        "pooler_activation": "gelu",
    },
    "mpnet": {"block": {"kind": "mpnet"}, "embeddings": {"segments": 0, "position_offset": 2}},
}
_CLASSES = {
    "bert": {
        "BertForPreTraining": "pooler mlm nsp",
        "BertForMaskedLM": "mlm",
        "BertLMHeadModel": "clm",
        "BertModel": "pooler",
    },
    "albert": {"AlbertForPreTraining": "pooler mlm sop", "AlbertForMaskedLM": "mlm", "AlbertModel": "pooler"},
    "electra": {"ElectraForPreTraining": "rtd", "ElectraModel": ""},
    "distilbert": {"DistilBertForMaskedLM": "mlm", "DistilBertModel": ""},
    "roberta": {"RobertaForMaskedLM": "mlm", "RobertaModel": "pooler"},
    "xlnet": {"XLNetLMHeadModel": "plm", "XLNetModel": ""},
    "mobilebert": {
        "MobileBertForPreTraining": "pooler mlm nsp",
        "MobileBertForMaskedLM": "mlm",
        "MobileBertModel": "pooler",
    },
    "modernbert": {"ModernBertForMaskedLM": "mlm", "ModernBertModel": ""},
    "eurobert": {"EuroBertForMaskedLM": "mlm", "EuroBertModel": ""},
    "neobert": {"NeoBERTLMHead": "mlm", "NeoBERT": ""},
    "deberta-v2": {"DebertaV2ForMaskedLM": "mlm", "DebertaV2Model": ""},
    "mpnet": {"MPNetForMaskedLM": "mlm", "MPNetModel": "pooler"},
}
# {family: {class: parts}}
CLASSES = {kind: {name: frozenset(parts.split()) for name, parts in known.items()} for kind, known in _CLASSES.items()}
STEMS = {family.model_type: family.stem for family in families.FAMILIES}
# Settings without which the classes of a family compute another architecture.
NEEDED = {
    "deberta-v2": {
        "relative_attention": True, "position_biased_input": False, "share_att_key": True, "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p", "position_buckets": 256,
    }
}  # fmt: skip
PARTS = {name: parts for name, parts in CLASSES["bert"].items() if "clm" not in parts}
_TASKS = {
    "nsp": {"bert": {"objective": {"kind": "bert"}}},
    "sop": {"sentence_order": {"objective": {"kind": "sentence_order"}, "examples": {"kind": "sentence_order"}}},
    "rtd": {"electra": {"objective": {"kind": "electra"}}},
    "plm": {"permutation": {"objective": {"kind": "permutation"}}},
    "clm": {"causal": {"objective": {"kind": "causal"}, "examples": {"kind": "full_sentences"}}},
}
# Fine-tuned heads: the number of logits and the task of each.
OUTPUTS = {"classification": 3, "multi_label": 3, "regression": 1, "tagging": 3, "span": 2, "multiple_choice": 1}
TASKS = {
    "classification": {"objective": {"kind": "classification", "classes": ["bad", "good", "ü, so-so"]}},
    "multi_label": {"objective": {"kind": "multi_label", "classes": ["bad", "good", "ü, so-so"]}},
    "regression": {"objective": {"kind": "regression"}},
    "tagging": {"objective": {"kind": "tagging", "classes": ["B-PER", "I-PER", "O"]}},
    "span": {"objective": {"kind": "question_answering"}},
    "multiple_choice": {"objective": {"kind": "multiple_choice", "classes": ["0", "1"]}},
}
_EXAMPLES = {"multi_label": "label_sets", "tagging": "tagged", "span": "questions", "multiple_choice": "choices"}


def trained() -> Tokenizer:
    """Return a WordPiece tokenizer trained on words of the letters a to f."""
    words = map("".join, itertools.product("abc", "def", "abf", "cde"))
    return tokenizer.train([" ".join(words)] * 9, TokenizerConfig(kind="wordpiece", vocab_size=60))


def make(parts: frozenset[str], tokens: Tokenizer, kind: str = "bert") -> Export:
    """Return a model of a family with these parts, in which all values differ."""
    terms = parts & TASKS.keys()
    tasks = {term: TASKS[term] | {"examples": {"kind": _EXAMPLES.get(term, "labeled_text")}} for term in terms}
    if "span" in terms and "max_positions" not in OWN[kind]:
        tasks["span"]["examples"] |= {"max_question": 5, "stride": 10}
    masking = {"kind": "tokens", "rate": families.of_config({"model_type": kind}).masking_rate}
    mlm = {"objective": {"kind": "mlm", "masking": masking}, "examples": {"kind": "doc_sentences"}}
    own = {"norm_epsilon": 1e-6} | OWN[kind] | ({"direction": "left_to_right"} if "clm" in parts else {})
    longest = (SIZES | own)["max_positions"]
    stage = {"seq_len": min(128, longest)}
    if terms:  # both choices of a question share a row
        row = longest * (1 + ("multiple_choice" in terms))
        stage = {"seq_len": row, "batch": min(32, 4096 // row)}
    config = from_dict(
        {
            "data": {"corpus": private_paths.EMBEDDED},  # files of transformers do not name the corpus
            "model": SIZES | {"dropout": 0.2, "vocab_size": tokens.vocab_size} | own,
            "tasks": tasks or next((_TASKS[part] for part in _TASKS if part in parts), {"mlm": mlm}),
            "stages": [stage],
        }
    )
    encoder, family = config.encoder(tokens.vocab_size, "cpu"), families.of_config({"model_type": kind})
    shapes = family.shapes(encoder, {term: OUTPUTS[term] for term in terms})
    paths = (name.ours for name in family.names(encoder, parts) if name.ours in shapes)
    structs = {path: jax.ShapeDtypeStruct(shapes[path], np.float32) for path in paths}
    params = vocabulary.pad(batches.filled(unflatten_dict(structs, sep="/")), encoder)
    if kind == "mobilebert":  # transformers reads this row beside the last token of a padded row
        params["encoder"]["embeddings"]["word"][tokens.pad_id] = 0.0
    if kind == "modernbert":  # nothing reads the norm before the first attention, and its folders have none
        params["encoder"]["layers"]["attention_norm"]["scale"][0] = 1.0
    # In the files of MPNet, padding is id 1.
    return roberta.with_published_ids(Export(to_dict(config), encoder, params, tokens, {}))


def fine_tuned(term: str, tokens: Tokenizer, kind: str = "bert") -> Export:
    """Return a model of a family with the fine-tuned head of a name."""
    return make(families.of_config({"model_type": kind}).parts_with(term), tokens, kind)
