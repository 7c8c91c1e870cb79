"""Drivers: trained policies in one file, their hub, loading and evaluation."""
