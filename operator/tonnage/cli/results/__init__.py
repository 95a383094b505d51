"""What a command found, as values and in words; text and pages lay it out."""
