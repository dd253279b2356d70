"""The training of a run: what a step computes, which data it reads, and the loop around it.

Start with `step` (one step), `program` (what is compiled) and `loop`. `parallel` places arrays on devices, `run` is
what a run writes and reads in its workdir, `results` is what a person looks at in the end.
"""
