"""Reading files that somebody else may have written: bounded before anything is allocated.

A folder that was sent or downloaded can hold anything under the names of a run or of a language model. What
these functions return has a bounded size and the types that its schema says.
"""
