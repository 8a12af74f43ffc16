"""The cases: possible faults of an order, each as a function that returns one Spark column.

names       the names of the cases and their precedence, without Spark
table       all cases in order; an order is in the first case that holds
messages, outcomes, carts, deadlines, consuming, waiting    the functions by theme
pushes      the case of pushes, a function DataFrame -> DataFrame
columns     expressions that the cases share
"""
