"""The one table of operator cases, which every backend has to get right.

layouts    arrays in named memory layouts, with guards
reference  what operators must give, and how far a result may be from it
cases      the rows, and running them on the CPU
"""
