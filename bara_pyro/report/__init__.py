"""Figures, tables and self-contained HTML reports."""
