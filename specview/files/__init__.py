"""Files of runs: schema, reader, writer, tables, atomic files."""
