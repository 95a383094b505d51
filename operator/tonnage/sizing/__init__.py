"""The arithmetic of memory, time, capacity and cost. Pure functions of plain numbers."""
