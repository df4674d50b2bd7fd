"""Forward and backward passes of plain networks in numpy, faster than torch for small batches."""
