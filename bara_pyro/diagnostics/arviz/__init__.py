"""Export posterior draws to ArviZ: groups, netCDF files and PSIS-LOO."""
