"""A program's model as a design for an FPGA, by hls4ml. `design.py` and what it imports run in the trial."""
