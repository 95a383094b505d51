"""What samples of engines mean: traffic, lengths, saturation, bursts."""
