"""Reads and writes the CSV files of simulations: profiles, co-locations, traces."""
