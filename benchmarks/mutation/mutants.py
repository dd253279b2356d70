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


_STEP, _RELATIVE = "training/test_step.py", "models/test_relative.py"
_SHARDING, _STRATEGY = "training/parallel/test_sharding.py", "training/parallel/strategy.py"
_PACKING, _ORDER, _MASKING = "data/test_order.py", "data/test_order.py", "data/test_masking.py"
_OPTIMIZER, _SCHEDULES = "training/test_optimizer.py", "training/test_schedules.py"
_CHECKPOINT = "training/run/test_checkpoint.py"
_NAMES = "interop/test_families.py"

CORE = [
    # Those that an earlier measurement found unnoticed.
    Mutant("training/step.py", " + gradient_norm + update_norm)", ")", _STEP),
    Mutant(
        "training/run/fingerprints.py",
        "words = _words(leaf.ravel()).ravel()",
        "words = _words(leaf.ravel()).ravel()[: max(1, leaf.size - 1)]",
        _CHECKPOINT,
    ),
    Mutant(
        "training/parallel/sharding.py", "np.flatnonzero(is_local_S))", "np.flatnonzero(is_local_S)[::-1])", _SHARDING
    ),
    Mutant(_STRATEGY, 'self.psum(leaf.astype(self.reduction), ("data",)).astype', "leaf.astype", _SHARDING),
    Mutant("training/run/metrics.py", "        self._clock = now\n", "", "training/run/test_metrics.py"),
    Mutant("models/blocks/xlnet.py", "bias_BHQT.astype(jnp.float32) * channels**-0.5", "bias_BHQT", _RELATIVE),
    Mutant(
        "models/blocks/xlnet.py", "same[..., None], other[..., None]", "other[..., None], same[..., None]", _RELATIVE
    ),
    Mutant(
        "objectives/losses.py", "second.astype(jnp.float32))) * weights)", "second.astype(jnp.float32))))", "objectives"
    ),
    Mutant("data/store.py", "head + file.read(MIB)", "head", "data/test_store.py"),
    Mutant("interop/names.py", '"self.query self.key self.value', '"self.key self.key self.value', _NAMES),
    Mutant("training/evaluation.py", "else -value", "else value", "training/test_evaluation.py"),
    # The step and what it is made of.
    Mutant("training/step.py", '"step": state["step"] + 1', '"step": state["step"] + 2', _STEP),
    Mutant("training/step.py", "is_applied = is_finite & ~has_failed", "is_applied = is_finite", _STEP),
    Mutant("training/step.py", "jnp.where(is_finite, 0,", 'jnp.where(is_finite, state["skipped"],', _STEP),
    Mutant(
        "training/loss.py",
        "fewest = -(-rows * seq_len // micro_tokens)",
        "fewest = rows * seq_len // micro_tokens",
        "training",
    ),
    Mutant("training/optim/optimizer.py", "if config.clip_norm:", "if not config.clip_norm:", _OPTIMIZER),
    Mutant(
        "training/optim/optimizer.py",
        "axes = tuple(range(1, param.ndim)) if IS_STACKED(path) else None",
        "axes = None",
        _OPTIMIZER,
    ),
    Mutant(
        "training/optim/optimizer.py",
        "return jnp.where(is_defined, param_norm /",
        "return jnp.where(is_defined, update_norm /",
        _OPTIMIZER,
    ),
    Mutant(
        "training/optim/adam.py",
        "first / (1 - b1**steps), second / (1 - b2**steps)",
        "first / (1 - b1**steps), second / (1 - b1**steps)",
        _OPTIMIZER,
    ),
    Mutant(
        "training/optim/adam.py",
        "count = jax.tree.map(optax.safe_increment, state.count)",
        "count = state.count",
        _OPTIMIZER,
    ),
    Mutant(
        "training/schedules.py",
        "return (step + 1) / max(warmup_steps, 1)",
        "return step / max(warmup_steps, 1)",
        _SCHEDULES,
    ),
    Mutant(
        "training/schedule_kinds.py",
        "0.5 * (1.0 + jnp.cos(jnp.pi * fallen))",
        "0.5 * (1.0 + jnp.cos(fallen))",
        _SCHEDULES,
    ),
    Mutant(
        "training/schedule_kinds.py",
        "(steps - step) / self.decay_steps",
        "(steps - step - 1) / self.decay_steps",
        _SCHEDULES,
    ),
    Mutant(
        "training/state.py",
        "[leaf] * (target.shape[0] // leaf.shape[0])",
        "[leaf[::-1]] * (target.shape[0] // leaf.shape[0])",
        "training/test_step.py",
    ),
    Mutant(
        "training/state.py", "if init_moments else state", "if not init_moments else state", "training/test_step.py"
    ),
    # The model.
    Mutant("models/layers.py", "lax.erf(x * 2**-0.5)", "lax.erf(x)", "models"),
    Mutant("models/layers.py", "0.044715", "0.44715", "models"),
    Mutant("models/dropout_words.py", "BYTE_VALUES / _kept_bytes(rate)", "1.0 / (1.0 - rate)", "models/test_layers.py"),
    Mutant(
        "models/attention.py",
        "query_BQHD.shape[-1] ** -0.5",
        "query_BQHD.shape[-1] ** -1.0",
        "models/test_kernels.py models/test_encoder.py",
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
        "models/blocks/xlnet.py",
        "angles_RC = (seq_len - jnp.arange",
        "angles_RC = (seq_len - 1 - jnp.arange",
        _RELATIVE,
    ),
    # Objectives.
    Mutant(
        "objectives/losses.py",
        "(classes < labels[..., None])",
        "(classes > labels[..., None])",
        "objectives/test_base.py",
    ),
    Mutant("objectives/losses.py", "return temperature**2 * jnp.sum(", "return jnp.sum(", "objectives"),
    Mutant(
        "objectives/losses.py",
        "(true_positives, count(is_predicted))",
        "(true_positives, count(is_positive))",
        "objectives/test_base.py",
    ),
    # Data.
    Mutant(
        "data/random.py",
        "while len(outside := np.flatnonzero(places >= size)):",
        "while len(outside := np.flatnonzero(places > size)):",
        "data/test_order.py",
    ),
    Mutant("data/random.py", "left, right = right, left ^", "left, right = left, right ^", "data/test_order.py"),
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
        "data/masking.py",
        "np.where(action < masking.mask, placed.vocabulary.mask_id, replaced)",
        "np.where(action < masking.random, placed.vocabulary.mask_id, replaced)",
        _MASKING,
    ),
    Mutant("data/masking.py", "draw.epochs % masking.static", "draw.epochs // masking.static", _MASKING),
    Mutant("data/masking.py", "np.floor(rate * maskable + 0.5)", "np.floor(rate * maskable)", _MASKING),
    Mutant("data/masking.py", "kept = rank < places", "kept = rank <= places", _MASKING),
    # Conversion.
    Mutant("interop/names.py", "tensor.T if name.transposed else tensor for tensor", "tensor for tensor", "interop"),
    Mutant(
        "interop/names.py",
        '"intermediate.dense output.dense output.LayerNorm"',
        '"output.dense output.dense output.LayerNorm"',
        _NAMES,
    ),
    Mutant("interop/bert.py", "attention.k_lin", "attention.v_lin", _NAMES),
    Mutant("interop/bert.py", "ffn ffn_output", "ffn ffn", _NAMES),
]

_UNREADABLE, _LEASE = "training/run/test_unreadable.py training/run/test_checkpoint.py", "training/run/test_lease.py"
_WRITER, _JOURNAL = "training/run/test_writer.py", "training/run/test_journal.py"
_WEIGHTS, _TRUST, _STATUS = "interop/test_weights.py", "test_trust.py objectives/test_base.py", "cli/test_status.py"
_FINGERPRINTS = "training/run/test_checkpoint.py training/run/test_saving.py"

RELIABILITY = [
    # Storage and exit codes.
    Mutant("runtime/storage.py", "return self.errno in _TRANSIENT", "return True", "runtime/test_storage.py"),
    Mutant(
        "runtime/storage.py",
        "        if error.transient:\n            raise Unavailable(",
        "        if not error.transient:\n            raise Unavailable(",
        "runtime/test_storage.py",
    ),
    Mutant(
        "runtime/storage.py",
        "if isinstance(error, OSError) and (number := error.errno or 0) > 0:",
        "if isinstance(error, OSError) and (number := error.errno or 0) is not None:",
        "runtime/test_storage.py",
    ),
    Mutant(
        "runtime/storage.py",
        "return errno.EIO if status >= 500 else",
        "return errno.EIO if status > 500 else",
        "runtime/test_storage.py",
    ),
    Mutant(
        "runtime/command_line.py",
        "FAILED_AGAIN: FailedAgain, FAILED: RunFailed",
        "FAILED: RunFailed, FAILED_AGAIN: FailedAgain",
        "cli/test_main.py",
    ),
    # Checkpoints.
    Mutant("training/run/checkpoint_errors.py", '"DATA_LOSS", ', "", _UNREADABLE),
    Mutant(
        "training/run/checkpoint_errors.py",
        "errno.EACCES if code[1] in _NO_RIGHTS else errno.EIO",
        "errno.EIO",
        _UNREADABLE,
    ),
    Mutant(
        "training/run/checkpoint.py",
        '(changes := differences(meta["arrays"], ',
        "(changes := differences({}, ",
        _UNREADABLE,
    ),
    Mutant(
        "training/run/checkpoint.py",
        "steps[-max(self.newest, _MIN_NEWEST) :]",
        "steps[-max(self.newest, 1) :]",
        _UNREADABLE,
    ),
    Mutant(
        "training/run/checkpoint.py",
        'is_intact = meta.pop("digest", None) == _digest(meta)',
        'is_intact = meta.pop("digest", None) is not None',
        _UNREADABLE,
    ),
    Mutant(
        "training/run/checkpoint.py",
        'altered = [path for path, value in meta["fingerprints"].items() if actual.get(path) != value]',
        "altered = []",
        _UNREADABLE,
    ),
    Mutant("training/run/checkpoint.py", "        check_replicas(state, step)\n", "", _FINGERPRINTS),
    Mutant(
        "training/run/checkpoint.py",
        "saved = _copy(state) if _shares_memory_with_host(state) else state",
        "saved = state",
        _CHECKPOINT,
    ),
    Mutant(
        "training/run/fingerprints.py", "value != common or 2 * count <= len(values)", "value != common", _FINGERPRINTS
    ),
    Mutant(
        "training/parallel/processes.py", 'if name.rpartition("/")[2] != purpose:', "if False:", "training/parallel"
    ),
    # The lock of an object store.
    Mutant("training/run/lease.py", "or not content.startswith(self._owner)", "or not content", _LEASE),
    Mutant("training/run/lease.py", "if time.monotonic() - self._renewed > self._seconds:", "if False:", _LEASE),
    Mutant(
        "training/run/lease.py",
        "            if not self._taken:\n                storage.write_text",
        "            if True:\n                storage.write_text",
        _LEASE,
    ),
    Mutant("training/run/lease.py", "if earlier <= number:", "if earlier <= number + 1:", _LEASE),
    # Logs.
    Mutant(
        "training/run/writer.py",
        "except Exception as error:  # no error may end the run",
        "except OSError as error:",
        _WRITER,
    ),
    Mutant("training/run/writer.py", "and not self._failed\n", "\n", _WRITER),
    Mutant("training/run/writer.py", "if self._waiting and self._waiting[0] is record:", "if self._waiting:", _JOURNAL),
    Mutant("training/run/writer.py", "while self._waiting_bytes > _MOST_WAITING_BYTES:", "while False:", _JOURNAL),
    Mutant("training/run/writer.py", "self._content += content", "self._content = content", _JOURNAL),
    Mutant("training/run/writer.py", "os.ftruncate(file.fileno(), size)", "pass", _JOURNAL),
    Mutant(
        "training/run/watchdog.py", "if name == TRAINING or self._end", "if self._end", "training/run/test_watchdog.py"
    ),
    # Folders of somebody else.
    Mutant("config/registry.py", "trust_code or kind in self.kinds)", "True)", _TRUST),
    Mutant("interop/weights.py", 'if importlib.util.find_spec("torch") is None:', "if False:", _WEIGHTS),
    Mutant("interop/weights.py", "sorted(expected ^ shard.keys()):", "sorted(expected - shard.keys()):", _WEIGHTS),
    Mutant(
        "runtime/untrusted.py", "for _ in range(_DEEPEST):", "for _ in range(10 * _DEEPEST):", "runtime/test_storage.py"
    ),
    Mutant(
        "config/private_paths.py",
        'return name if is_public else name.rstrip("/").rpartition("/")[2]',
        "return name",
        "config/test_load.py",
    ),
    # Versions and status.
    Mutant(
        "training/run/versions.py",
        "if any(name in refused for name in changed):",
        "if refused:",
        "training/run/test_record.py",
    ),
    Mutant(
        "training/run/versions.py",
        'if not (package.parent / ".git").exists():',
        "if False:",
        "training/run/test_record.py",
    ),
    Mutant("training/run/run_status.py", 'heartbeat["state"] not in _FINAL and silent', "silent", _STATUS),
    Mutant("training/run/run_status.py", "rate * max(steps - step, 0)", "rate * steps", _STATUS),
    # Labeled files.
    Mutant("data/labeled/tables.py", "elif len(row) == len(header):", "elif len(row) >= len(header):", "data/labeled"),
    Mutant("data/labeled/tables.py", "if header.count(column) > 1:", "if header.count(column) > 2:", "data/labeled"),
    Mutant("data/labeled/base.py", "or not record[column].strip():", "or not record[column]:", "data/labeled"),
]

MUTANTS = CORE + RELIABILITY
