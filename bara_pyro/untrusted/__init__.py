"""Read untrusted files: sizes are checked before anything is allocated.

A downloaded folder can hold anything under the names of a run or of a language model. The values that these
functions return have a bounded size and the types of their schema.
"""
