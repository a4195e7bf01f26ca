"""Charts of curves in a terminal. Braille lines, ticks and colours come from `burnt.plot`."""
