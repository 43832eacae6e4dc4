"""What traces of verify steps say, summed up in one pass: in words, as JSON, HTML and PNG.

`aggregate` counts a stream of records in constant memory; `speedup` tells what other numbers of
draft steps would give, with the formulas; `summary` is the report as data, which every rendering
shows; `charts` are its charts as data, drawn by `svg` and `png`; `page` is the HTML file.
"""
