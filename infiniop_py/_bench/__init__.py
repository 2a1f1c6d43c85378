"""``python -m infiniop_py bench``: this library, and what a user could use instead, at this machine's limits.

How a row is measured:

* The machine's ceilings come first: FMA peaks, and copy and read rates at the sizes of the rows.
* This library and every peer work on the same memory and take turns, each with the same number of threads.
  Before a turn the process is left to fall idle, because some peers' threads spin for a while after their
  work; then come untimed calls until they are as fast as they have been, and for as long as the CPUs have
  slept, but at most 15 ms; then a batch that is timed as a whole.
* Turns go on until every spread (interquartile range / median) is small, or the row's time is used up. The
  medians are reported.
* What other processes use of the CPUs meanwhile is measured too, and so is the FMA rate after each turn of
  ours: CPUs that are shared with other machines run slower for seconds at a time. Rows disturbed are marked.
* A row meant to come from memory goes round several sets of operands, more than the last-level cache holds.
  All other rows find in the caches what fits there.

GFLOP/s count 2 M N K; GB/s count every operand once, as whole cache lines where it is strided. The percentage
is that of the roofline, ``max(FLOPs / FMA peak, bytes / bandwidth)`` over the time measured. F16 and BF16 are
held to the F32 peak, in which they are accumulated; a CPU with native arithmetic for them could pass it.
"""
