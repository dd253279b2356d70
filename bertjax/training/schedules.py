"""Learning rate as a function of the step."""

import jax
import jax.numpy as jnp


def linear(step: jax.Array, peak: float, warmup_steps: int, total_steps: int) -> jax.Array:
    """Linear rise to `peak` over the warm-up, then linear fall (Devlin et al., 2019, appendix A.2).

    The first step already moves (1 / warmup_steps of the peak) and the last one still does.
    """
    rise = (step + 1) / max(warmup_steps, 1)
    fall = (total_steps - step) / max(total_steps - warmup_steps, 1)
    return peak * jnp.minimum(1.0, jnp.minimum(rise, fall))
