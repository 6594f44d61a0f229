"""The plugins of Jobs (`spec.plugins`): what distributed frameworks need in their pods, and objects beside them.

A plugin is added in `registry`.
"""
