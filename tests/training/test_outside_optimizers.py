"""Muon, and optimizers from outside: what they do to stacked layers, how they are sharded, resumed and refused."""

import dataclasses
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import PartitionSpec as P
from optax import contrib

from bertjax.config.config import from_dict
from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model
from bertjax.runtime.devices import AXES
from bertjax.runtime.errors import UserError
from bertjax.training.gradient_norms import gradient_norms
from bertjax.training.optim.adam import scale_by_muon
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.optim.optimizer import make_optimizer
from bertjax.training.parallel.sharding import ENCODER_RULES, HEAD_RULES, shardings
from bertjax.training.state import grow
from bertjax.training.trace_checks import checked_setups
from tests import runs
from tests.training.test_optimizer import CONFIG, LAYERS, bert_params, close, gradients_of, moved, stacked_params, train

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "optimizers.md"
PLAIN = OptimizerConfig(weight_decay=0.0, clip_norm=0.0)
OUTSIDE = dataclasses.replace(PLAIN, kind="optax.contrib:muon", arguments={"consistent_rms": 0.2, "ns_steps": 4})


def layers_apart(params: dict) -> dict:
    """The same parameters with one dictionary for each layer, as a library without stacked layers has them."""
    stack = params["encoder"]["layers"]
    apart = {f"layer_{index}": jax.tree.map(lambda leaf, index=index: leaf[index], stack) for index in range(LAYERS)}
    return {"encoder": {"embeddings": params["encoder"]["embeddings"], **apart}, "heads": params["heads"]}


def trained_apart(optimizer: optax.GradientTransformation, params: dict, rate: float = 0.1) -> list[dict]:
    """Params after each step of an optimizer that includes the learning rate."""
    apart, seen = layers_apart(params), []
    state = optimizer.init(apart)
    for gradient in gradients_of(params):
        updates, state = optimizer.update(layers_apart(gradient), state, apart)
        apart = optax.apply_updates(apart, updates)
        seen.append(apart)
    return seen


@pytest.mark.slow
def test_muon_is_that_of_optax_for_kernels_of_layers_and_adam_for_the_rest():
    params, config = stacked_params(), dataclasses.replace(CONFIG, kind="muon", weight_decay=0.0, clip_norm=0.0)
    muon = trained_apart(contrib.muon(0.1, consistent_rms=0.2), params)
    adam = train(make_optimizer(dataclasses.replace(config, kind="adamw")), params)
    for after, by_muon, by_adam in zip(train(make_optimizer(config), params), muon, adam, strict=True):
        kernels = [by_muon["encoder"][f"layer_{index}"]["dense"]["kernel"] for index in range(LAYERS)]
        close([*after["encoder"]["layers"]["dense"].pop("kernel")], kernels)
        del by_adam["encoder"]["layers"]["dense"]["kernel"]
        close(after, by_adam)


def test_blocks_are_what_muon_of_optax_does_with_each_alone():
    random, layer = np.random.default_rng(0), "encoder/layers"
    shapes = {
        f"{layer}/query/kernel": (2, 12, 8),
        f"{layer}/output/kernel": (2, 8, 12),
        f"{layer}/odd/kernel": (2, 8, 6),
    }
    gradient = {path: jnp.asarray(random.standard_normal(shape), jnp.float32) for path, shape in shapes.items()}

    def apart(arrays: dict) -> dict:
        """{(path, layer, block): matrix}; a kernel with 6 columns has no blocks of 4."""
        splits = [
            (path, row, np.split(kernel, 2, axis=int("output" not in path)) if "odd" not in path else [kernel])
            for path, stack in arrays.items()
            for row, kernel in enumerate(stack)
        ]
        return {(path, row, block): each for path, row, blocks in splits for block, each in enumerate(blocks)}

    nested = unflatten_dict(gradient, sep="/")
    ours, theirs = scale_by_muon(optax.identity(), block=4), contrib.muon(1.0, consistent_rms=0.2)
    state, other_state = ours.init(nested), theirs.init(apart(gradient))
    for _ in range(2):
        updates, state = ours.update(nested, state, nested)
        others, other_state = theirs.update(apart(gradient), other_state, apart(gradient))
        found = apart(flatten_dict(updates, sep="/"))
        close([found[key] for key in others], [-update for update in others.values()])


@pytest.mark.parametrize("kind", ["muon", "optax.contrib:muon", "optax:adafactor", "optax:sgd"])
def test_states_are_sharded_like_their_parameters_and_the_rest_is_replicated(kind):
    arguments = {"optax:adafactor": {"min_dim_size_to_factor": 4}, "optax:sgd": {"momentum": 0.9}}.get(kind, {})
    params = bert_params()
    state = jax.eval_shape(make_optimizer(dataclasses.replace(PLAIN, kind=kind, arguments=arguments)).init, params)
    mesh = jax.sharding.AbstractMesh((1, 4, 1), AXES)
    tree = {"params": params, "opt_state": state}
    placed = shardings(jax.eval_shape(lambda: tree), (*ENCODER_RULES, *HEAD_RULES), mesh)
    flat = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(placed)
    }
    kernel = "encoder/layers/intermediate/kernel"
    found = {path: spec for path, spec in flat.items() if path.endswith(kernel) and path.startswith("opt_state")}
    assert found
    expected = {flat[f"params/{kernel}"]} | ({P()} if kind == "optax:adafactor" else set())
    assert set(found.values()) <= expected and (kind == "optax:adafactor" or found)


@pytest.mark.slow
def test_the_optimizer_of_the_page_trains_and_resumes_bit_for_bit(flags, tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n(# mylab/optimizers.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab" / "optimizers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    chosen = re.findall(r"--config\.optimizer\.(?:kind=mylab|arguments)\S+", PAGE.read_text())
    assert len(chosen) == 2
    # Its updates are 1 in size, ten times those of Adam.
    rate = ["--config.optimizer.learning_rate=1e-4", "--config.optimizer.weight_decay=0", "--config.stages.0.steps=30"]
    run = [*flags, *rate, *chosen]
    assert runs.call(*run, f"--workdir={tmp_path / 'whole'}") == 0
    losses = [record["train/mlm_loss"] for record in runs.records(tmp_path / "whole" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
    assert "mylab.optimizers (sha256)" in (tmp_path / "whole" / "starts.jsonl").read_text()

    runs.train_here(run, tmp_path / "parted", at_edge=lambda step: True if step == 10 else None)
    assert runs.call(*run, f"--workdir={tmp_path / 'parted'}") == 0
    assert runs.weights(tmp_path / "parted") == runs.weights(tmp_path / "whole")
    groups = (
        sys.modules["mylab.optimizers"]
        .lion_in_layers(1.0)
        .init({"encoder": {"layers": {"0": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}}})
    )
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(state)) for name, state in groups.inner_states.items()}
    assert sizes == {"lion": 1 + 4, "adam": 1 + 2 + 2}, "a count, and the moments of their own parameters"
    monkeypatch.delitem(sys.modules, "mylab.optimizers")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"kind": "muonn"},
            "optimizer.kind='muonn' is unknown; choose one of adamw, stable_adamw, lamb, muon, or name module:function",
        ),
        ({"kind": "lamb", "block": 64}, "optimizer.block=64 has no effect with optimizer.kind=lamb; set it to 0"),
        ({"kind": "adamw", "arguments": {"beta": 0.9}}, "optimizer.arguments={'beta': 0.9} has no effect with"),
        (
            {"kind": "optax:lion", "arguments": {"weight_decay": 0.1}},
            "optimizer.arguments.weight_decay is set by bertjax",
        ),
        (
            {"kind": "optax:lionn"},
            "optimizer.kind='optax:lionn' cannot be used: optax has no function 'lionn'; correct the name",
        ),
        ({"kind": "optaxx:lion"}, "optimizer.kind='optaxx:lion' cannot be imported: No module named 'optaxx'"),
        ({"kind": "optax:lion", "arguments": {"beta": 1.0}}, "optimizer.kind='optax:lion' with optimizer.arguments="),
        ({"kind": "optax:scale_by_adam"}, "optimizer.kind='optax:scale_by_adam' has no argument learning_rate; give"),
    ],
)
def test_what_cannot_work_is_refused(choices, message):
    with pytest.raises(UserError) as error:
        make_optimizer(OptimizerConfig(**choices))
    assert str(error.value).startswith(message)


def without_params(learning_rate):
    return optax.GradientTransformation(lambda params: (), lambda updates, state: (updates, state))


def only_updates(learning_rate):
    return optax.GradientTransformation(lambda params: (), lambda updates, state, params: updates)


def other_shapes(learning_rate):
    def update(updates, state, params):
        return jax.tree.map(jnp.sum, updates), state

    return optax.GradientTransformation(lambda params: (), update)


def growing_state(learning_rate):
    def update(updates, state, params):
        return updates, {"count": state["count"], "extra": jnp.zeros(3)}

    return optax.GradientTransformation(lambda params: {"count": jnp.zeros(())}, update)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            without_params,
            r"fails: .*TypeError: .* takes 2 positional arguments but 3 were given; init\(params\) returns",
        ),
        (only_updates, r"fails: .*Error: .*; init\(params\) returns a state"),
        (other_shapes, r"fails: ValueError: the updates had \S+ with shape \(.*, and update returns \(\); "),
        (growing_state, r"fails: ValueError: the state had \S*extra with shape None, and update returns \(3,\); "),
    ],
)
def test_a_wrong_function_is_one_line_before_a_corpus_is_prepared(function, message):
    config = from_dict(
        {
            "model": {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16},
            "optimizer": {"kind": f"{__name__}:{function.__name__}", "warmup_steps": 0},
            "stages": [{"steps": 5, "seq_len": 16, "batch": 8}],
        }
    )
    with pytest.raises(UserError, match=message):
        checked_setups(config, 100, jax.devices()[:1])


def test_parameters_that_start_later_need_counts_of_their_own():
    with pytest.raises(UserError, match="may count steps for all parameters together"):
        make_optimizer(OUTSIDE, counts_by_leaf=True)


def test_a_step_moves_against_the_gradient_and_decays_by_its_own_setting_only():
    """By default, optax's Lion has a weight decay of 1e-3, also on biases."""
    params = {"heads": {"kernel": jnp.ones((3, 2)), "bias": jnp.full(2, 3.0)}}
    optimizer = make_optimizer(dataclasses.replace(PLAIN, kind="optax:lion"))
    gradient = {"heads": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}}
    after = moved(params, optimizer.update(gradient, optimizer.init(params), params)[0], 0.1)
    np.testing.assert_allclose(after["heads"]["kernel"], 0.9, rtol=1e-6)
    np.testing.assert_array_equal(after["heads"]["bias"], params["heads"]["bias"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "muon", "optax.contrib:muon"])
def test_after_a_reset_the_optimizer_is_a_new_one(kind):
    """Muon keeps coefficients in its state, which are not 0 at first."""
    params = stacked_params()
    optimizer = make_optimizer(dataclasses.replace(PLAIN, kind=kind))
    gradient = next(iter(gradients_of(params)))
    updates, used = optimizer.update(gradient, optimizer.init(params), params)
    state = {"params": params, "opt_state": used}
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state)
    reset = grow(state, abstract, optimizer.init)
    again, _ = optimizer.update(gradient, reset["opt_state"], params)
    close(again, updates)


def test_a_head_with_submodules_called_layers_is_not_a_stack():
    params = stacked_params()
    params["heads"] = {"layers": {"kernel": jnp.ones((64, 4))}}
    decaying = dataclasses.replace(PLAIN, layer_decay=0.5)
    gradient = jax.tree.map(jnp.ones_like, params)
    plain, slowed = (
        optimizer.update(gradient, optimizer.init(params), params)[0]
        for optimizer in (make_optimizer(dataclasses.replace(decaying, layer_decay=1.0)), make_optimizer(decaying))
    )
    shares = jax.tree.map(lambda slow, fast: float(jnp.mean(slow / fast)), slowed, plain)
    assert shares["heads"]["layers"]["kernel"] == pytest.approx(1.0)
    assert shares["encoder"]["embeddings"]["word"] == pytest.approx(0.5**4)
    assert set(gradient_norms(gradient, Model(EncoderConfig(layers=LAYERS), {}))) == {
        "grad_norm/encoder/embeddings",
        "grad_norm/heads/layers",
        *(f"grad_norm/encoder/layers/{index}" for index in range(LAYERS)),
    }
