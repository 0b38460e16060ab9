"""What Prefect imports by entry point: the worker type and the blocks; never TensorFlow."""
