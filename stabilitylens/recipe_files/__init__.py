"""Recipes from the files that training frameworks are started with: one dialect, one file."""

from stabilitylens.recipe_files._dialect import DIALECTS, Dialect
from stabilitylens.recipe_files._read import read_recipe

__all__ = ["DIALECTS", "Dialect", "read_recipe"]
