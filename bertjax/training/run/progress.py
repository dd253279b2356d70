"""The progress bar for training steps."""

import sys

from tqdm import tqdm


def progress_bar(steps: int, done: int, disable: bool) -> tqdm:
    """Return a progress bar over a run's steps; it redraws rarely if stderr is a file."""
    return tqdm(
        total=steps,
        initial=done,
        unit="step",
        dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 15.0,
        smoothing=0.1,
        disable=disable,
    )


def show_metrics(bar: tqdm, metrics: dict[str, float]) -> None:
    """Show tokens per second, losses and accuracies after the bar, most important first: a terminal may cut the end."""
    # Steps per second, smoothed by tqdm; None at first.
    rate = bar.format_dict["rate"]
    parts = [f"{metrics['tokens'] * rate:,.0f} tokens/s"] if rate else []
    parts += [f"{name}={value:.3f}" for name, value in metrics.items() if name.endswith(("_loss", "_accuracy"))]
    bar.set_postfix_str(" ".join(parts), refresh=False)
