# One adapter file a family. Whoever adds a family appends its line.
set(ORACLE_ATEN_SOURCES
)
