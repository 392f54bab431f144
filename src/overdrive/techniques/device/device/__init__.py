"""Where the tensors of a program live: moving it to another device while it runs, and back.

Imported by techniques only once the framework is there. "There" is the device, "here" the CPU's memory.
"""
