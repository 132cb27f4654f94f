"""What sessions, endpoints, agents and their like are, and the rules by which they change: pure values and functions,
which all other packages know and which know none of them.
"""
