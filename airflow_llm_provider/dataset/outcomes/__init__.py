"""How rows ended: journal, results, and what of it need not be asked again."""
