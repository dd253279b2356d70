"""An export decides nothing that this machine reads, writes, matches or runs: few of its settings are read."""

import ast
import dataclasses
import functools
import json
import shutil
import types
import typing
from pathlib import Path

import pytest

from bertjax import analysis
from bertjax.cli import compress
from bertjax.cli.compress import Cuts
from bertjax.config import private_paths
from bertjax.config.config import CONFIG_UNIONS, Config, config_of
from bertjax.config.opening import SavedModel
from bertjax.config.registry import Union
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.objectives.distill.teacher import Teacher
from bertjax.runtime.errors import UserError
from bertjax.training.config import EvalConfig, RuntimeConfig
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.results import rescore
from tests import runs
from tests.object_store import ObjectStore

# Every setting of a run. A new one must be put into one of the two lists: what would it do in the file of a stranger?
READ = """
data.filters.*.at_least data.filters.*.at_most data.filters.*.email data.filters.*.fewest_alphabetic
data.filters.*.fewest_characters data.filters.*.fewest_letters data.filters.*.fewest_sentences
data.filters.*.fewest_stop_words data.filters.*.fewest_words data.filters.*.ip data.filters.*.kind
data.filters.*.longest_mean_word data.filters.*.most_bullets data.filters.*.most_characters
data.filters.*.most_ellipses data.filters.*.most_symbols data.filters.*.most_words data.filters.*.ngram
data.filters.*.shortest_mean_word data.filters.*.stop_words data.filters.*.text_field
data.heldout_share data.splitter
model.activation model.activation_bits model.attention_dropout model.block.biases
model.block.bottlenecked model.block.buckets model.block.decoder_bias
model.block.feedforwards model.block.max_distance
model.block.fixed_heads model.block.gated model.block.global_every
model.block.inner_width model.block.key_value_heads model.block.kind model.block.local_rotary_base
model.block.normalization model.block.pairs model.block.pooler model.block.rotary_base model.block.window
model.direction model.dropout model.embeddings.kind
model.embeddings.position_offset model.embeddings.positions model.embeddings.segments
model.embeddings.task_types model.embeddings.width
model.feedforward model.head_width model.heads model.init_stddev model.layers model.max_positions
model.norm_epsilon model.pooler_activation model.sharing model.sharing_groups model.vocab_size
model.width
stages.*.masking_rate stages.*.seq_len stages.*.tasks
tasks.*.examples.choices tasks.*.examples.comment tasks.*.examples.conllu tasks.*.examples.context
tasks.*.examples.cut tasks.*.examples.fewest tasks.*.examples.kind tasks.*.examples.label
tasks.*.examples.label_columns tasks.*.examples.limit tasks.*.examples.limit_seed tasks.*.examples.max_question
tasks.*.examples.max_tokens tasks.*.examples.on_bad_record tasks.*.examples.pair tasks.*.examples.question
tasks.*.examples.quoted tasks.*.examples.random_next tasks.*.examples.reach tasks.*.examples.separator
tasks.*.examples.short_seq_prob tasks.*.examples.skip_missing_labels tasks.*.examples.stride tasks.*.examples.tag
tasks.*.examples.tag_field tasks.*.examples.text tasks.*.examples.units
tasks.*.examples.trim tasks.*.examples.word
tasks.*.objective.activation tasks.*.objective.balanced tasks.*.objective.both_directions
tasks.*.objective.class_weights tasks.*.objective.classes
tasks.*.objective.first tasks.*.objective.losses.*.compare tasks.*.objective.losses.*.direction
tasks.*.objective.losses.*.factor tasks.*.objective.losses.*.heads tasks.*.objective.losses.*.kind
tasks.*.objective.losses.*.layer_map tasks.*.objective.losses.*.on tasks.*.objective.losses.*.pairs_of_layers
tasks.*.objective.losses.*.projection tasks.*.objective.losses.*.student_layer
tasks.*.objective.losses.*.teacher_layer tasks.*.objective.losses.*.temperature
tasks.*.objective.own_factor tasks.*.objective.steps
tasks.*.objective.full_score tasks.*.objective.embedding_sharing tasks.*.objective.generator_depth
tasks.*.objective.generator_share tasks.*.objective.kind tasks.*.objective.label_smoothing
tasks.*.objective.longest tasks.*.objective.masking.kind tasks.*.objective.masking.lexicon_size
tasks.*.objective.masking.longest tasks.*.objective.masking.mask tasks.*.objective.masking.random
tasks.*.objective.masking.rate tasks.*.objective.masking.static tasks.*.objective.memory
tasks.*.objective.metric tasks.*.objective.nbest tasks.*.objective.pooling tasks.*.objective.precision
tasks.*.objective.reads tasks.*.objective.rtd_coefficient tasks.*.objective.shuffle_rate
tasks.*.objective.temperature
tasks.*.objective.threshold
tasks.*.plans tasks.*.row_examples tasks.*.task_type tasks.*.weight
"""
LOCAL = """
data.cache_dir data.corpus data.filters.*.against data.heldout data.near_duplicates.buckets data.near_duplicates.drop
data.near_duplicates.hashes data.near_duplicates.ngram data.on_bad_document data.share data.smoothing
data.sources.*.corpus data.sources.*.group_field data.sources.*.text_field data.sources.*.token_share
data.sources.*.weight data.store data.text_field data.tokenizer.byte_fallback data.tokenizer.character_coverage
data.tokenizer.keep data.tokenizer.keep_file data.tokenizer.kind data.tokenizer.lowercase data.tokenizer.model
data.tokenizer.normalizer data.tokenizer.sample_characters data.tokenizer.vocab_size data.workers
eval.every eval.rows eval.samples eval.seed
init_from init_layers init_neighbors init_state init_words
lora.alpha lora.kernels lora.rank
optimizer.b1 optimizer.b2 optimizer.bias_correction optimizer.clip_norm optimizer.epsilon optimizer.frozen
optimizer.grow_moments optimizer.kind optimizer.layer_decay optimizer.layer_decay_offset optimizer.learning_rate
optimizer.multipliers.*.by_layer optimizer.multipliers.*.factor optimizer.multipliers.*.path
optimizer.arguments optimizer.block optimizer.ema_decay optimizer.schedule.decay optimizer.schedule.decay_steps
optimizer.schedule.end_step optimizer.schedule.floor
optimizer.schedule.kind optimizer.warmup_share optimizer.warmup_steps optimizer.warmup_tokens
optimizer.weight_decay
pruning.end_share pruning.kind pruning.remaining pruning.start_share
quantization.bits quantization.layer_bits
runtime.attention runtime.dtype runtime.gradient_norms runtime.hang_timeout runtime.heartbeat_timeout runtime.hooks
runtime.keep runtime.keep_at runtime.keep_best runtime.keep_every runtime.log_every runtime.max_skipped
runtime.mesh.data runtime.mesh.fsdp runtime.mesh.tensor runtime.micro_tokens runtime.reduction runtime.remat
runtime.save_every runtime.save_seconds runtime.skip_rows runtime.steps_per_call runtime.strategy runtime.trackers
runtime.unroll runtime.workers
seed
stages.*.batch stages.*.epochs stages.*.examples stages.*.flops stages.*.frozen stages.*.frozen_layers
stages.*.layers stages.*.learning_rate stages.*.local_rotary_base
stages.*.masking.kind stages.*.masking.lexicon stages.*.masking.lexicon_size stages.*.masking.longest
stages.*.masking.mask stages.*.masking.random stages.*.masking.rate stages.*.masking.static
stages.*.min_steps stages.*.minutes
stages.*.rotary_base stages.*.steps stages.*.warmup_steps
tasks.*.examples.folds tasks.*.examples.further_heldout tasks.*.examples.heldout tasks.*.examples.train
tasks.*.examples.unlabeled tasks.*.objective.masking.lexicon tasks.*.objective.teacher
"""
_PACKAGE = Path(private_paths.__file__).parents[1]
# An expression that takes 2^28 steps on a path of 28 characters (Cox, 2007, "Regular expression matching can be simple
# and fast").
_SLOW = r"^((\w|/)+)+!$"
_BUCKET = "stranger"


def settings_of(hint, path: str = "", known=types.MappingProxyType({})) -> dict[str, typing.Any]:
    """{name: metadata} of all settings in a type, those of every class of a union included."""
    unions: dict[type, Union] = {union.base: union for union in CONFIG_UNIONS}
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        # Of `str | float`, a file or a share, neither has settings of its own.
        hint, *_ = (option for option in typing.get_args(hint) if option is not types.NoneType)
    if origin in (tuple, dict):
        inner = typing.get_args(hint)[0 if origin is tuple else 1]
        return settings_of(inner, f"{path}.*") if dataclasses.is_dataclass(inner) else {path: known}
    if not dataclasses.is_dataclass(hint):
        return {path: known}
    classes = [unions[hint].class_of(kind) for kind in unions[hint].kinds] if hint in unions else [hint]
    names = {f"{path}.kind": {}} if hint in unions else {}
    for each in classes:
        hints = typing.get_type_hints(each)
        for field in dataclasses.fields(each):
            # An objective in a wrapper has the settings of any other one.
            if field.init and not field.metadata.get("is_derived") and hints[field.name] is not hint:
                names |= settings_of(hints[field.name], f"{path}.{field.name}".lstrip("."), field.metadata)
    return names


def nested(name: str, setting: object) -> dict:
    return functools.reduce(lambda inner, key: {key: inner}, reversed(name.split(".")), setting)


def is_read(name: str) -> bool:
    """Return whether the setting of this name is kept if it is the only one."""
    value = private_paths.read_from_export(nested(name, setting := object()))
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value is setting


def is_hidden(name: str) -> bool:
    """Return whether an export has another value in place of a path, or of a path in a list."""
    return any("/me/" not in str(private_paths.without(nested(name, value))) for value in ("/me/x", ["/me/x"]))


def test_every_setting_is_read_from_exports_or_local():
    read, local, names = set(READ.split()), set(LOCAL.split()), settings_of(Config)
    assert not read & local and names.keys() - read - local == set(), "choose: is it read from an export?"
    assert read | local == names.keys(), "the lists have settings that a run does not have"
    assert {name for name in names if is_read(name)} == read
    assert {name for name, known in names.items() if known.get("is_place")} == {*filter(is_hidden, names)}


def test_only_who_reads_a_run_builds_all_of_its_settings():
    """Everything else takes `config.config_of` or `SavedModel.config`, which read an export as one."""
    importers = set()
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "bertjax.config.config":
                importers |= {
                    path.relative_to(_PACKAGE).as_posix() for alias in node.names if alias.name == "from_dict"
                }
    assert importers == {
        "config/config_file.py",  # what the user writes
        "interop/huggingface.py",  # settings that it makes
        "config/opening.py",
        "training/branch.py",  # a checkpoint in a workdir
        "training/run/record.py",  # workdirs
    }


@pytest.fixture
def hostile(undisturbed, tmp_path, monkeypatch):
    """An export by a stranger: its settings name a bucket, files of this machine, and a slow expression."""
    monkeypatch.setenv("HOME", str(tmp_path))  # token stores are in ~/.cache
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "strange" / "export"
    shutil.copytree(undisturbed / "export", folder)
    # A record of a run around it would be the stranger's too.
    shutil.copy(undisturbed / "config.json", folder.parent)
    manifest = json.loads((folder / "bertjax.json").read_text())
    config = manifest["config"]
    config["data"] |= {
        "store": f"gs://{_BUCKET}/stores",
        "cache_dir": f"gs://{_BUCKET}/cache",
        "workers": 1000,
        "filters": {
            "ours": {"kind": "decontamination", "against": ["/etc/passwd"]},
            "theirs": {"kind": "strange.module:Filter"},
            "length": {"kind": "length", "fewest_words": 2},
        },
    }
    config["data"]["tokenizer"]["model"] = "/etc/passwd"
    config["optimizer"] |= {"frozen": [_SLOW], "multipliers": [{"path": _SLOW}]}
    config["stages"][0] |= {"frozen": [_SLOW], "batch": 1 << 20}
    config["runtime"] |= {"trackers": ["strange.module:Tracker"], "dtype": "bfloat16", "attention": "splash"}
    config["lora"] = {"rank": 2, "kernels": _SLOW}
    config["init_from"] = "/etc"
    [task] = config["tasks"].values()
    losses = {"soft": {"kind": "strange.module:Loss"}}
    for _ in range(2):  # a wrapper in a wrapper, which no run writes
        task["objective"] = {"kind": "distilled", "objective": task["objective"], "teacher": "/etc", "losses": losses}
    (folder / "bertjax.json").write_text(json.dumps(manifest))
    return folder


def test_what_is_local_has_its_default(hostile):
    saved = SavedModel(hostile)
    for config in (saved.config, config_of(saved.export)):
        data = config.data
        assert (data.store, data.cache_dir, data.workers) == (private_paths.STORE, private_paths.CACHE_DIR, None)
        assert list(data.filters) == ["length"] and data.heldout_share == 0.2
        assert data.corpus == private_paths.EMBEDDED and "passwd" not in repr(config)
        assert (config.optimizer, config.runtime, config.eval) == (OptimizerConfig(), RuntimeConfig(), EvalConfig())
        assert config.frozen == () and not config.init_from and "/etc" not in repr(config.task)
        [stage] = config.stages
        assert (stage.seq_len, stage.batch, stage.frozen) == (32, 32, ())
    assert saved.config.data.tokenizer == TokenizerConfig(model=str(hostile / "tokenizer"))
    assert saved.export.encoder.execution == SavedModel(hostile).export.encoder.execution
    assert saved.export.encoder.execution.dtype == "float32"
    assert Teacher.read(hostile).config.execution.dtype == "float32"


@pytest.mark.parametrize("use", ["evaluate", "analyze", pytest.param("compress", marks=pytest.mark.slow)])
def test_text_of_this_machine_stays_on_it(hostile, tmp_path, use):
    """The token store of a private text is made here, and not in the bucket that an export names."""
    private = runs.write_corpus(tmp_path / "private.txt", documents=30)
    with ObjectStore().running() as server, server.used_here():
        if use == "evaluate":
            assert rescore.run(str(hostile), corpus=str(private))["eval"]["mlm_loss"] > 0
        elif use == "analyze":
            assert analysis.run("patterns", hostile, corpus=str(private), examples=4)
        else:
            compress.run(hostile, tmp_path / "small", Cuts(layers=(0,)), score=str(private))
        assert server.names() == [] and not server.calls
    assert list((tmp_path / ".cache" / "bertjax" / "stores").glob("*/manifest.json"))


@pytest.mark.parametrize(
    "data",
    [
        {"corpus": "gs://stranger/mails"},
        {"corpus": "embedded:en", "sources": {"a": {"corpus": "embedded:en"}, "b": {"corpus": "hf:a/b"}}},
        {"corpus": "embedded:en", "heldout": "/etc/passwd"},
    ],
)
def test_data_that_an_export_names_is_not_opened(hostile, data):
    _set_data(hostile, data)
    for use in (lambda: rescore.run(str(hostile)), lambda: analysis.run("patterns", hostile)):
        with pytest.raises(UserError, match="opens no data but .*; add --corpus=CORPUS.* or name the run itself$"):
            use()


def _set_data(folder: Path, data: dict) -> None:
    manifest = json.loads((folder / "bertjax.json").read_text())
    manifest["config"]["data"] |= data
    (folder / "bertjax.json").write_text(json.dumps(manifest))
