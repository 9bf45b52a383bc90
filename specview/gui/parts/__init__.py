"""Widgets, charts, tables, forms and the themes that the rooms share."""
