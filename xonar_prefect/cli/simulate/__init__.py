"""`xonar simulate`: what would happen."""
