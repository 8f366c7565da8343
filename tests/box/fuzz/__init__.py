"""Mutated sessions of 0-10, 0-9-1 and 0-9, fed to the broker's adapters without sockets.

``python -m tests.box.fuzz --inputs N`` runs a campaign; the tests of ``tests/box/test_fuzz.py`` run a small part.
"""
