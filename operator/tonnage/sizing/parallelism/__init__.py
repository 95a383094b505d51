"""How a model is split over GPUs, and what one rank then holds, reads and computes."""
