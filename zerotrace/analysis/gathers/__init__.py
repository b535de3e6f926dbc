"""Stage 3's parameter gathers: what each one carries, how much of it compute hides, and who has to wait for it.

A gather is one submission of parameters by DeepSpeed's coordinator, with all the collectives that it launches. Labels
of the capture say which collectives those are, of what kind and for which module; without labels they are inferred from
the order of the host's calls, and marked.
"""
