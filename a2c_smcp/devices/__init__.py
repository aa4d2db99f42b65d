"""The identity of a machine: proofs of possession, signed results, sealed calls (WIRE §10).

It needs the extra `devices`.
"""
