"""Where rows come from: files of every format, tables in memory, conditions on them."""
