"""``make test-matrix``: a part of the tests on every Spark and Python that the package claims, from the built wheel."""
