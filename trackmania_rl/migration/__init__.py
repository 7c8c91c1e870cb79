"""Conversion from other programs' runs to runs here, and back."""
