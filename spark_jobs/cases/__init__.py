"""The cases: what can be wrong with an order, one small DataFrame -> DataFrame function each.

names       their names and precedence, known without Spark
table       all of them in order; an order is in the first that holds
messages, outcomes, carts, deadlines, consuming, pushes    the functions by theme
"""
