"""Drivers: trained policies in one file, hub, loading and evaluation."""
