"""Seam *picture decoded*: Pillow decodes a JPEG or PNG file whose pixels the program then takes as an array."""
