"""The mutants: a file of `bertjax/`, a text in it, the bug that replaces it, and the tests that should find it."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A bug.

    Attributes:
      file: path below `bertjax/`.
      before: text that occurs once in the file.
      after: what replaces it.
      tests: paths below `tests/`, separated by spaces.
    """

    file: str
    before: str
    after: str
    tests: str

    @property
    def name(self) -> str:
        return f"{self.file}: {' '.join(self.before.split())} -> {' '.join(self.after.split())}"


_STEP, _RELATIVE, _LAYERS = "training/test_step.py", "models/test_relative.py", "models/test_layers.py"
_SHARDING, _STRATEGY = "training/parallel/test_sharding.py", "training/parallel/strategy.py"
_PACKING, _ORDER, _MASKING = "data/test_packing.py", "data/test_order.py", "data/test_masking.py"
_OPTIMIZER, _SCHEDULES = "training/test_optimizer.py", "training/test_schedules.py"
_CHECKPOINT = "training/run/test_checkpoint.py"
_NAMES = "interop/test_names.py interop/test_bert.py interop/test_families.py"

CORE = [
    # Those that an earlier measurement found unnoticed.
    Mutant("training/step.py", " & jnp.isfinite(gradient_norm)", "", _STEP),
    Mutant(
        "training/run/checkpoint.py",
        "(leaf.ravel(), jnp.uint32).ravel()",
        "(leaf.ravel(), jnp.uint32).ravel()[: max(1, leaf.size - 1)]",
        _CHECKPOINT,
    ),
    Mutant(
        "training/parallel/sharding.py", "np.flatnonzero(is_local_S))", "np.flatnonzero(is_local_S)[::-1])", _SHARDING
    ),
    Mutant(_STRATEGY, 'self._sum(leaf, ("data",)).astype', "leaf.astype", _SHARDING),
    Mutant("training/run/metrics.py", "        self._clock = now\n", "", "training/run/test_metrics.py"),
    Mutant("models/attention.py", "logits_BHQT += bias_BHQT * scale", "logits_BHQT += bias_BHQT", _RELATIVE),
    Mutant("models/relative.py", "same[..., None], other[..., None]", "other[..., None], same[..., None]", _RELATIVE),
    Mutant(
        "objectives/losses.py", "second.astype(jnp.float32))) * weights)", "second.astype(jnp.float32))))", "objectives"
    ),
    Mutant("data/store.py", "head + file.read(MIB)", "head", "data/test_store.py"),
    Mutant(
        "interop/names.py",
        'dense(f"{theirs}.{query}", f"{ours}/attention/query")',
        'dense(f"{theirs}.{query}", f"{ours}/attention/key")',
        _NAMES,
    ),
    Mutant("training/evaluation.py", "else -metrics[best]", "else metrics[best]", "training/test_evaluation.py"),
    # The step and what it is made of.
    Mutant("training/step.py", '"step": state["step"] + 1', '"step": state["step"] + 2', _STEP),
    Mutant("training/step.py", "is_applied = finite & ~has_failed", "is_applied = finite", _STEP),
    Mutant(
        "training/step.py", "skipped = jnp.where(finite, 0,", 'skipped = jnp.where(finite, state["skipped"],', _STEP
    ),
    Mutant(
        "training/step.py",
        "fewest = -(-rows * seq_len // micro_tokens)",
        "fewest = rows * seq_len // micro_tokens",
        "training",
    ),
    Mutant("training/optimizer.py", "if config.clip_norm:", "if not config.clip_norm:", _OPTIMIZER),
    Mutant(
        "training/optimizer.py",
        "axes = tuple(range(1, param.ndim)) if IS_STACKED(path) else None",
        "axes = None",
        _OPTIMIZER,
    ),
    Mutant(
        "training/optimizer.py",
        "return jnp.where(is_defined, param_norm /",
        "return jnp.where(is_defined, update_norm /",
        _OPTIMIZER,
    ),
    Mutant(
        "training/adam.py",
        "first / (1 - b1**steps), second / (1 - b2**steps)",
        "first / (1 - b1**steps), second / (1 - b1**steps)",
        _OPTIMIZER,
    ),
    Mutant(
        "training/adam.py", "count = jax.tree.map(optax.safe_increment, state.count)", "count = state.count", _OPTIMIZER
    ),
    Mutant(
        "training/schedules.py",
        "return (step + 1) / max(warmup_steps, 1)",
        "return step / max(warmup_steps, 1)",
        _SCHEDULES,
    ),
    Mutant(
        "training/schedules.py", "0.5 * (1.0 + jnp.cos(jnp.pi * fallen))", "0.5 * (1.0 + jnp.cos(fallen))", _SCHEDULES
    ),
    Mutant(
        "training/schedules.py",
        "fall = (steps - step) / self.decay_steps",
        "fall = (steps - step - 1) / self.decay_steps",
        _SCHEDULES,
    ),
    Mutant(
        "training/state.py",
        "[leaf] * (target.shape[0] // leaf.shape[0])",
        "[leaf[::-1]] * (target.shape[0] // leaf.shape[0])",
        "training/test_state.py",
    ),
    Mutant("training/state.py", 'if moments == "reset":', 'if moments == "copy":', "training/test_state.py"),
    # The model.
    Mutant("models/layers.py", "lax.erf(x * 2**-0.5)", "lax.erf(x)", "models"),
    Mutant("models/layers.py", "0.044715", "0.44715", "models"),
    Mutant("models/layers.py", "x * (_BYTE_VALUES / threshold)", "x / (1.0 - rate)", _LAYERS),
    Mutant(
        "models/attention.py",
        "scale = query_BQHD.shape[-1] ** -0.5",
        "scale = query_BQHD.shape[-1] ** -1.0",
        "models/test_attention.py models/test_encoder.py",
    ),
    Mutant(
        "models/rotary.py",
        "second * rotary.cosine_BT1C + first * rotary.sine_BT1C",
        "second * rotary.cosine_BT1C - first * rotary.sine_BT1C",
        "models/test_modern.py",
    ),
    Mutant("models/visibility.py", "<= self.window", "< self.window", "models"),
    Mutant(
        "models/visibility.py", "rank_BQ[:, :, None] >= self.rank_BT", "rank_BQ[:, :, None] > self.rank_BT", "models"
    ),
    Mutant(
        "models/pooling.py",
        "1 + jnp.arange(slots)).astype(jnp.float32)",
        "jnp.arange(slots)).astype(jnp.float32)",
        "models objectives/finetuning",
    ),
    Mutant(
        "models/pooling.py",
        "jnp.max(jnp.where(is_member_BNT",
        "jnp.min(jnp.where(is_member_BNT",
        "models objectives/finetuning",
    ),
    Mutant(
        "models/relative.py", "angles_RC = (seq_len - jnp.arange", "angles_RC = (seq_len - 1 - jnp.arange", _RELATIVE
    ),
    # Objectives.
    Mutant(
        "objectives/losses.py",
        "(classes < labels[..., None])",
        "(classes > labels[..., None])",
        "objectives/test_losses.py",
    ),
    Mutant("objectives/losses.py", "return temperature**2 * jnp.sum(", "return jnp.sum(", "objectives"),
    Mutant(
        "objectives/losses.py",
        "(true_positives, count(is_predicted))",
        "(true_positives, count(is_positive))",
        "objectives/test_losses.py",
    ),
    # Data.
    Mutant(
        "data/random.py",
        "while len(outside := np.flatnonzero(places >= size)):",
        "while len(outside := np.flatnonzero(places > size)):",
        "data/test_random.py",
    ),
    Mutant("data/random.py", "left, right = right, left ^", "left, right = left, right ^", "data/test_random.py"),
    Mutant("data/order.py", 'side="right") - 1', 'side="left") - 1', _ORDER),
    Mutant("data/order.py", "rounds * len(self.plans) + plans", "rounds + plans", _ORDER),
    Mutant("data/order.py", "np.argsort((nth + 0.5) / turns[owners]", "np.argsort(nth / turns[owners]", _ORDER),
    Mutant(
        "data/packing.py",
        "open_rows.put(room - rest * length, used - filled",
        "open_rows.put(room - rest * length, used",
        _PACKING,
    ),
    Mutant(
        "data/packing.py",
        "at = bisect.bisect_left(self._rooms, length)",
        "at = bisect.bisect_right(self._rooms, length)",
        _PACKING,
    ),
    Mutant(
        "data/framing.py",
        "np.maximum(room - b, (room + 1) // 2)",
        "np.maximum(room - b, room // 2)",
        "data/test_framing.py",
    ),
    Mutant(
        "data/framing.py",
        "cut = sum(len(ids) > room for ids in first)",
        "cut = sum(len(ids) >= room for ids in first)",
        "data/test_framing.py",
    ),
    Mutant(
        "data/masking/base.py",
        "np.where(action < masking.mask, placed.vocabulary.mask_id, replaced)",
        "np.where(action < masking.random, placed.vocabulary.mask_id, replaced)",
        _MASKING,
    ),
    Mutant("data/masking/base.py", "draw.epochs % masking.static", "draw.epochs // masking.static", _MASKING),
    Mutant("data/masking/base.py", "np.floor(rate * maskable + 0.5)", "np.floor(rate * maskable)", _MASKING),
    Mutant("data/masking/base.py", "kept = rank < places", "kept = rank <= places", _MASKING),
    # Conversion.
    Mutant("interop/names.py", "tensor.T if name.transposed else tensor for tensor", "tensor for tensor", "interop"),
    Mutant(
        "interop/names.py",
        'dense(f"{theirs}.{intermediate}", f"{ours}/intermediate")',
        'dense(f"{theirs}.{output}", f"{ours}/intermediate")',
        _NAMES,
    ),
    Mutant("interop/distilbert.py", 'key="attention.k_lin"', 'key="attention.v_lin"', _NAMES),
    Mutant("interop/albert.py", 'output="ffn_output"', 'output="ffn"', _NAMES),
]

MUTANTS = CORE
