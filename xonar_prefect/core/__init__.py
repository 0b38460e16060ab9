"""Decides who runs where and beside whom. Standard library only; no clock, dice, disk or log."""
