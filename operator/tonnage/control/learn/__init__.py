"""What engines teach of speed, memory and attainment, and what is believed of it."""
