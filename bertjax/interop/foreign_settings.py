"""Tables of the settings in foreign folders: each key is read, known to be harmless, or refused by name.

The modules that read a key list it; `_TOKENIZER_READ` repeats the tokenizer's keys so that they count as known. A key
that is in no table gives a note.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any

from bertjax.runtime.errors import UserError, quoted, shorten

# config.json: settings of `PretrainedConfig` in transformers 4 and 5 that do not change the encoder's function. They
# control generation, training, outputs and files. Their token ids are redundant with the tokenizer's files.
_CONFIG_HARMLESS = frozenset(
    # files and versions
    "_name_or_path _commit_hash architectures dtype torch_dtype model_type tokenizer_class transformers_version "
    "_attn_implementation_autoset _attn_implementation attn_implementation language license name author directionality "
    # outputs and speed
    "return_dict output_attentions output_hidden_states output_past torchscript use_bfloat16 use_cache xla_device "
    "chunk_size_feed_forward gradient_checkpointing tf_legacy_loss fused_attention reference_compile "
    # training only
    "classifier_dropout classifier_dropout_prob initializer_range initializer_factor summary_last_dropout dropout "
    "attention_dropout hidden_dropout_prob attention_probs_dropout_prob qa_dropout seq_classif_dropout layerdrop "
    "tie_weights_ tie_encoder_decoder sinusoidal_pos_embds untie_r finetuning_task task_specific_params "
    "embedding_dropout pre_trained label_smoothing "
    # labels and symbols, read elsewhere
    "id2label label2id num_labels problem_type bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id "
    "unk_token_id pad_token_id tie_word_embeddings vocab_size sentence_transformers "
    "sbert_ce_default_activation_function "
    # decoders and generation
    "bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id diversity_penalty "
    "do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id "
    "forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams "
    "num_return_sequences output_scores prefix remove_invalid_values repetition_penalty return_dict_in_generate "
    "suppress_tokens temperature top_k top_p typical_p start_n_top end_n_top mem_len reuse_len use_mems_eval "
    "use_mems_train use_mems d_head n_token true_hidden_size "
    # leftovers of older code in published files, which no class reads
    "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type "
    "down_scale_factor gap_size net_structure_type num_memory_blocks generator_size ln_type".split()
)
# {key: (harmless values, effect of any other value)}
_CONFIG_REFUSED = {
    "quantization_config": ((), "its weights are packed; save it without quantization"),
    "auto_map": ((), "its model has code of its own, which bertjax does not run"),
    "adapters": (({"adapters": {}, "config_map": {}, "fusion_config_map": {}, "fusions": {}},), "merge its adapters"),
    "adapter_fusion": ((), "merge its adapters"),
    "is_encoder_decoder": ((False,), "it is an encoder with a decoder"),
    "position_embedding_type": (("absolute",), "its attention adds distances"),
    "embedding_size_factor": ((1,), "its embeddings are scaled"),
    "is_causal": ((False,), "its tokens see only earlier ones"),
    "rope_scaling": (({"rope_type": "default"}, {"type": "default"}), "its rotary positions are scaled"),
}
# Rates of dropout beside the one that a family reads; null means that one. transformers applies the last one to the
# output of attention as well, in ModernBERT.
_FURTHER_DROPOUT = ("mlp_dropout", "classifier_dropout", "classifier_dropout_prob", "cls_dropout", "attention_dropout")
# {model_type: {alternative name: the family's own name}}, `attribute_map` of the config classes.
_ALIASES = {
    "eurobert": {"clf_pooling": "classifier_pooling"},  # in folders of the authors' code
    "distilbert": {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    "xlnet": {
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
}
# tokenizer_config.json
_TOKENIZER_READ = frozenset(
    "tokenizer_class auto_map do_lower_case strip_accents tokenize_chinese_chars add_prefix_space keep_accents "
    "model_max_length model_input_names bos_token eos_token unk_token sep_token pad_token cls_token mask_token "
    "additional_special_tokens extra_special_tokens model_specific_special_tokens added_tokens_decoder".split()
)
_TOKENIZER_HARMLESS = frozenset(
    # Decoding and padding, which bertjax does in its own way.
    "clean_up_tokenization_spaces padding_side padding pad_to_multiple_of pad_token_type_id errors chat_template "
    "truncation truncation_strategy max_length max_len stride return_tensors verbose trim_offsets "
    # Files and versions.
    "name_or_path special_tokens_map_file tokenizer_file vocab_file merges_file full_tokenizer_file processor_class "
    "tokenizer_type use_fast from_slow backend is_local local_files_only _commit_hash transformers_version "
    "model_type language license init_inputs vocab_size unk_id "
    # Options of the slow classes only: the fast ones and bertjax ignore them.
    "never_split remove_space legacy spaces_between_special_tokens is_split_into_words mask_padding device "
    "use_default_system_prompt vocab_type "
    "bos_token_id eos_token_id unk_token_id sep_token_id pad_token_id cls_token_id mask_token_id".split()
)
_TOKENIZER_REFUSED = {
    "split_special_tokens": ((False,), "added special tokens are split there"),
    "word_tokenizer_type": (("basic",), "words are split by other code there"),
    "subword_tokenizer_type": (("wordpiece",), "words are cut by other code there"),
    "do_subword_tokenize": ((True,), "words are not cut there"),
    "do_word_tokenize": ((True,), "texts are not split into words there"),
    "normalize_text": ((False,), "texts are rewritten by code there"),
    "mecab_kwargs": ((), "words are split by MeCab there"),
    "normalization": ((False,), "texts are rewritten by code there"),
    "sp_model_kwargs": ((), "SentencePiece has options of its own there"),
    "wordpieces_prefix": (("##",), "pieces inside a word have another prefix there"),
    "split_by_punct": ((False,), "texts are split at punctuation there"),
    "add_bos_token": ((False,), "texts start with another symbol there"),
    "add_eos_token": ((False,), "texts end with another symbol there"),
}
# {key: values that bertjax follows}; others give a note. Only slow classes may leave punctuation in words.
_TOKENIZER_NOTED = {"do_basic_tokenize": (True,), "truncation_side": ("right",)}
_SYMBOLS_READ = frozenset(key for key in _TOKENIZER_READ if key.endswith(("_token", "special_tokens")))


def config_error(key: str, value: Any, why: str) -> UserError:
    """Return the error for a setting of a `config.json`; `why` ends with the remedy, if there is one."""
    return UserError(f"config.json has {key}={quoted(value)}; {why}")


def with_own_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `config.json` with alternative key names replaced by the family's own."""
    aliases = _ALIASES.get(str(config.get("model_type")), {})
    # If a file has both names, the alternative one wins: transformers sets it last.
    return {key: value for key, value in config.items() if key not in aliases} | {
        aliases[key]: config[key] for key in aliases if key in config
    }


def notes_of_config(config: Mapping[str, Any], read: Iterable[str]) -> list[str]:
    """Return notes on unknown keys of a `config.json`.

    Args:
      config: the settings.
      read: keys that the family and its heads read.

    Raises:
      UserError: a setting changes the model's function in a way that bertjax does not compute.
    """
    return _notes("config.json", config, _CONFIG_HARMLESS.union(read), _CONFIG_REFUSED)


def notes_of_dropout(config: Mapping[str, Any], key: str, rate: float) -> list[str]:
    """Return a note on further rates of dropout outside of attention, since bertjax has one.

    Args:
      config: content of `config.json`.
      key: name of the rate that bertjax reads.
      rate: its value.
    """
    names = _FURTHER_DROPOUT if config.get("model_type") == "modernbert" else _FURTHER_DROPOUT[:-1]
    lost = [f"{name}={quoted(config[name])}" for name in names if config.get(name) not in (None, rate)]
    if not lost:
        return []
    return [
        f"config.json has {' and '.join(lost)}; bertjax has one rate of dropout outside of attention and takes "
        f"{key}={rate}: set model.dropout to train with another"
    ]


def notes_of_tokenizer(settings: Mapping[str, Any], symbols: Mapping[str, Any]) -> list[str]:
    """Return notes on `tokenizer_config.json` and `special_tokens_map.json`; raises as `notes_of_config` does."""
    known = _TOKENIZER_READ | _TOKENIZER_HARMLESS | _TOKENIZER_NOTED.keys()
    notes = _notes("tokenizer_config.json", settings, known, _TOKENIZER_REFUSED)
    notes += [
        f"tokenizer_config.json has {odd}, which bertjax does not follow" for odd in unusual(settings, _TOKENIZER_NOTED)
    ]
    return [*notes, *notes_of_unknown("special_tokens_map.json", symbols, _SYMBOLS_READ)]


def _notes(file: str, settings: Mapping[str, Any], known: Set[str], refused: Mapping[str, tuple]) -> list[str]:
    for key, (plain, what) in refused.items():
        if key not in known and (odd := unusual(settings, {key: plain})):
            raise UserError(f"{file} has {odd[0]}: {what}, and bertjax does not do so")
    return notes_of_unknown(file, settings, known | refused.keys())


def unusual(settings: Mapping[str, Any], plain: Mapping[str, tuple]) -> list[str]:
    """Return `KEY=VALUE` for each setting of `plain` whose value is neither empty nor one of the values there.

    Files list many settings as null, {} or [] that nobody set.
    """
    values = {key: settings.get(key) for key in plain}
    return [f"{key}={quoted(v)}" for key, v in values.items() if v not in (None, {}, []) and v not in plain[key]]


def notes_of_unknown(file: str, settings: Mapping[str, Any], known: Set[str]) -> list[str]:
    """Return a note on the settings of a file that no table has."""
    if not (unknown := sorted(settings.keys() - known)):
        return []
    return [f"{file} has settings that bertjax does not know and leaves out: {shorten(list(map(quoted, unknown)))}"]
