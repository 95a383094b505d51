"""One model of a vLLM engine: its schedule over arrays, the cost of a step as figures. Pure."""
