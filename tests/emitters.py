"""Options of `jax.jit` for tests that compare two programs to the last bits.

The suite compiles with XLA's older emitters, which are quick and round fused loops differently in different programs.
"""

AS_USERS_COMPILE = {"xla_cpu_use_fusion_emitters": True}
