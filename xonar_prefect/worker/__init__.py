"""Holds trainings, releases them to devices, and looks after them until they end."""
