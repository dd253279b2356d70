"""The progress bar of a run."""

import io

from tqdm import tqdm

from bertjax.training.hooks.progress import show_metrics


def test_the_rate_is_seen_on_a_narrow_terminal_however_many_losses_there_are():
    bar = tqdm(total=100, unit="step", ncols=80, file=io.StringIO(), mininterval=0, initial=10)
    bar.update(40)
    losses = {f"{name}_loss": 1.0 for name in ("generator", "discriminator", "total")}
    show_metrics(bar, losses | {"tokens": 4096.0, "generator_accuracy": 0.5})
    assert len(str(bar)) <= 80 and "tokens/s" in str(bar) and "generator_accuracy" not in str(bar)
    bar.close()
