"""Thin callbacks for trainers that own the loop: one module a trainer."""
