"""Settings that are refused, with their messages; tests/config/test_bad_config.py does so through the command line."""

import re

import pytest

from bertjax.config.config import from_dict
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError

LOCAL = {"layers": 6, "block": {"kind": "modern", "window": 8, "global_every": 2}, "embeddings": {"positions": "none"}}
MIX = {"a": {"objective": {"kind": "classification", "reads": "mix"}, "examples": {"kind": "labeled_text"}}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model": LOCAL | {"layers": 3}, "init_from": "a", "init_layers": [0, 1, 3]},
            "init_layers=[0, 1, 3] moves layers of init_from: layer 3 is local, and place 2 is for one that is global; "
            "list a layer of the same kind for each place",
        ),
        (
            {"model": LOCAL | {"layers": 3}, "init_from": "a", "init_layers": [0, 4, 2]},
            "layer 4 is global, and place 1 is for one that is local; list a layer of the same kind for each place",
        ),
        (
            {"model": {"width": 64, "heads": 2, "embeddings": {"width": 32}}, "init_neighbors": True},
            "init_neighbors=True needs BERT's layers, and a table of at most as many positions as they have channels; "
            "set it to False for model.block.kind=bert with model.width=64, model.embeddings.width=32 and "
            "model.max_positions=512",
        ),
        ({"model": LOCAL, "init_neighbors": True}, "set it to False for model.block.kind=modern with model.width=768"),
        ({"model": {"width": 64, "heads": 2}, "init_neighbors": True}, "width=64 and model.max_positions=512"),
        ({"init_from": "a", "init_neighbors": True}, "init_neighbors=True and init_from='a' exclude each other"),
        (
            {"model": LOCAL, "stages": [{"layers": 3}, {}]},
            "stages.1 stacks 3 layers to 6, and copies would compute something else: layer 0 is first (without a norm "
            "before attention), and place 3 is for one that is local; set stages.0.layers=6",
        ),
        (
            {"model": LOCAL | {"layers": 4}, "stages": [{"layers": 2}, {}]},
            "stages.1 stacks 2 layers to 4, and copies would compute something else: layer 0 is first (without a norm "
            "before attention), and place 2 is for one that is global; set stages.0.layers=4",
        ),
        (
            {"model": {"layers": 8, "sharing": "attention", "sharing_groups": 2}, "stages": [{"layers": 4}, {}]},
            "stages.1 stacks 4 layers to 8, and model.sharing_groups=2 would give them the parameters of other groups; "
            "set model.sharing_groups=1, or stages.0.layers=8",
        ),
        (
            {"model": {"layers": 4}, "tasks": MIX, "stages": [{"layers": 2}, {}]},
            "tasks.a.objective reads a mix of all layers, which has a weight for each, and stages.0.layers=2 starts "
            "with fewer than model.layers=4; set tasks.a.objective.reads=last",
        ),
    ],
)
def test_layers_that_would_not_compute_what_they_were_trained_for(settings, message):
    with pytest.raises(UserError, match=re.escape(message).replace(r"\.\*", ".*")):
        from_dict(settings)


ROTARY = {"block": {"kind": "modern", "window": 0, "global_every": 1}, "embeddings": {"positions": "none"}}


@pytest.mark.parametrize(
    ("model", "stages", "message"),
    [
        (
            {},
            [{"rotary_base": 1e4}, {}],
            "stages.0.rotary_base=10000 has no effect: no layer of this model (model.block.kind=bert) reads "
            "positions with it; set stages.0.rotary_base=0",
        ),
        (
            ROTARY,
            [{"local_rotary_base": 1e4}, {}],
            "stages.0.local_rotary_base=10000 has no effect: no layer of this model (model.block.kind=modern) reads ",
        ),
        (LOCAL, [{}, {"rotary_base": 1e4}], "stages.1.rotary_base=10000 must equal model.block.rotary_base=160000: "),
        (LOCAL, [{"rotary_base": 0.5}, {}], "stages.0.rotary_base=0.5 must be above 1"),
        (LOCAL, [{"rotary_base": -1.0}, {}], "stages.0.rotary_base=-1.0 must be above 1; 10000 is usual"),
    ],
)
def test_rotary_bases_that_a_stage_cannot_have(model, stages, message):
    with pytest.raises(UserError, match=re.escape(message)):
        from_dict({"model": model, "stages": stages})


def test_bits_of_layers_need_the_same_layers_in_all_stages():
    config = {"model": {"layers": 2}, "quantization": {"bits": 8, "layer_bits": [4, 2]}}
    assert from_dict(config | {"stages": [{"layers": 2}, {}]})
    with pytest.raises(UserError, match=r"layer_bits=\[4, 2\] does not fit stages.0.layers=1; leave one of them out"):
        from_dict(config | {"stages": [{"layers": 1}, {}]})


@pytest.mark.parametrize(
    "mapping, message",
    [
        ({"model": {"widht": 1}}, "unknown configuration key 'model.widht'; did you mean 'width'?"),
        ({"stages": [{"batchs": 1}]}, "unknown configuration key 'stages.0.batchs'; did you mean 'batch'?"),
        ({"model": {"width": 30}}, "model.width=30 is not divisible by model.heads=12"),
        (
            {"stages": [{"seq_len": 1024}]},
            "stages.0.seq_len=1024 exceeds model.max_positions=512; lower stages.0.seq_len or raise "
            "model.max_positions, or pack shorter examples: tasks.bert.examples.max_tokens=512",
        ),
        (
            {"model": {"preset": "tinny"}},
            f"model.preset='tinny' is unknown; choose one of {', '.join(PRESETS)} or init_from",
        ),
        (
            {"model": {"execution": {}}},
            "model.execution is not a setting; use runtime.dtype, runtime.unroll and runtime.remat",
        ),
        (
            {"model": {"layers": 5}, "stages": [{"layers": 2}, {}]},
            "stages.1 has 5 layers and the stage before has 2; set stages.1.layers to 2 or 4",
        ),
        (
            {"model": {"layers": 4}, "stages": [{"layers": 2}]},
            "stages.0.layers=2 must equal model.layers=4: the last stage trains the whole model",
        ),
        ({"tasks": {}}, "tasks is empty; give at least one, with an objective and examples"),
        (
            {"tasks": {"a": {}, "b": {"weight": 1e-5}}},
            "tasks.b.weight=1e-05 gives it 0.001% of the steps of stages.0; the smallest share is 0.012%: raise "
            "its weight",
        ),
        ({"stages": [{"tasks": ["a"]}]}, "stages.N.tasks has 'a', which is not in tasks; choose among bert"),
        (
            {"tasks": {"a": {}, "b": {}}, "stages": [{"tasks": ["a"]}]},
            "tasks.b is in no stage; add it to stages.N.tasks, or remove it from tasks",
        ),
        (
            {"optimizer": {"layer_decay_offset": 2}},
            "optimizer.layer_decay_offset=2 has no effect without optimizer.layer_decay; set both, or leave it out; "
            "layer_decay=0.8 is usual",
        ),
        (
            {"optimizer": {"warmup_share": 0.1, "warmup_tokens": 3e9}},
            "optimizer.warmup_share=0.1 and optimizer.warmup_tokens=3000000000.0 exclude each other; leave one out, "
            "or set optimizer.warmup_share=0.0",
        ),
        ({"stages": []}, "stages is empty; give at least one, with steps, seq_len and batch"),
        (
            {"stages": [{"learning_rate": 1}]},
            "stages.0.learning_rate=1.0 has no effect in the first stage; set optimizer.learning_rate and "
            "optimizer.warmup_steps instead",
        ),
        (
            {"stages": [{"steps": 500}]},
            "optimizer.warmup_steps=10000 must be below the 500 steps that the learning rate has to rise and fall; "
            "lower it, or train longer",
        ),
        (
            {"stages": [{}, {"steps": 50, "learning_rate": 1e-4, "warmup_steps": 50}]},
            "stages.1.warmup_steps=50 must be below the 50 steps that the learning rate has to rise and fall; "
            "lower it, or train longer",
        ),
        (
            {"optimizer": {"kind": "adam"}},
            "optimizer.kind='adam' is unknown; choose one of adamw, stable_adamw, lamb, muon, or name module:function",
        ),
        (
            {"optimizer": {"multipliers": [{"factor": 2.0}]}},
            "optimizer.multipliers.0.path is empty; write .* to match every parameter",
        ),
        (
            {"optimizer": {"frozen": ["layers/("]}},
            "optimizer.frozen.0='layers/(' is not a regular expression: missing ), unterminated subpattern at "
            "position 7",
        ),
        (
            {"tasks": {"a": {"objective": {"masking": {"kind": "word"}}}}},
            "masking.kind='word' is unknown; choose one of tokens, words, ngrams, spans, phrases, uniform, or name "
            "module:Class",
        ),
        (
            {"tasks": {"a": {"examples": {"kind": "full_sentences", "trim": "front"}}}},
            "unknown configuration key 'tasks.a.examples.trim'; known are cut, kind, max_tokens",
        ),
        ({"tasks": {"a": {"examples": {"kind": 5}}}}, """tasks.a.examples.kind=5 is int; it must be text, as "'5'\""""),
    ],
)
def test_bad_settings_are_refused(mapping, message):
    with pytest.raises(UserError) as error:
        from_dict(mapping)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "data, message",
    [
        ({"on_bad_document": "ignore"}, "data.on_bad_document='ignore' is unknown; choose one of stop, skip"),
        ({"corpus": "a", "sources": {"b": {"corpus": "b"}}}, "data.corpus='a' and data.sources (b) are both set"),
        ({"sources": {"b": {}}}, "data.sources.b.corpus is empty; name a file"),
        ({"smoothing": 0.7, "sources": {"a": {"corpus": "a"}}}, "data.smoothing=0.7 has no effect on one corpus"),
        (
            {"smoothing": 0.7, "sources": {"a": {"corpus": "a"}, "b": {"corpus": "b", "weight": 2.0}}},
            "data.smoothing=0.7 and data.sources.b.weight=2.0 both set how often a source is drawn",
        ),
        (
            {"sources": {"a": {"corpus": "a", "token_share": 0.5}, "b": {"corpus": "b", "token_share": 0.4}}},
            "data.sources have a token_share of 0.9 together; make them sum to 1",
        ),
        (
            {"sources": {"a": {"corpus": "a", "token_share": 0.5}, "b": {"corpus": "b"}}},
            "data.sources.b has no token_share, and others have one; set it",
        ),
        (
            {"sources": {"a": {"corpus": "a", "token_share": 1.0, "weight": 2.0}}},
            "data.sources.a.weight=2.0 and data.sources.a.token_share=1.0 both set how often a source is drawn",
        ),
        ({"share": float("nan")}, "data.share=nan is not a finite number"),
        ({"sources": {"../b": {"corpus": "b"}}}, "data.sources has the name '../b'"),
        ({"sources": {"b": {"corpse": "b"}}}, "unknown configuration key 'data.sources.b.corpse'; did you mean"),
    ],
)
def test_bad_sources(data, message):
    with pytest.raises(UserError, match=re.escape(message)):
        from_dict({"data": data})
