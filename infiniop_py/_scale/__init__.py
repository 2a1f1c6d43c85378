"""``python -m infiniop_py scale``: what a model would take on machines that are not here.

models       shapes of decoders
work         the operators of a layer, and how long each takes: flops, bytes, two rates
collectives  what devices send each other, and how long that takes
plans        how a model may be shared out over devices, and what each way comes to
report       tables, and a plot
validate     how well work and collectives predict what can be measured here
command      the command line
"""
