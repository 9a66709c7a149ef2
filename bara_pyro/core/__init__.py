"""The program and what runs it: likelihood, guide, bound, inference, prediction; knows no method."""
