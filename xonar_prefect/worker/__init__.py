"""Holds a pool's trainings, releases them to devices, and watches over them to the end."""
