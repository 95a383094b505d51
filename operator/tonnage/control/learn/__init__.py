"""What engines teach of speed, memory and kept promises, and what is believed of it."""
