"""``python -m infiniop_py conformance``: a backend plugin, held to its contract; and the one table of
operator cases, which every backend has to get right.

layouts    arrays in named memory layouts, with guards
reference  what operators must give, and how far a result may be from it
cases      the rows, and running them on the CPU
device     a device as a C program has it
rows       rows on a device
rules      what else its contract says
command    the command line
"""
