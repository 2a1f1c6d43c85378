"""Programs that use the package: ``python -m infiniop_py.examples.digits``."""
