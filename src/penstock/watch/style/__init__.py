"""How values look to people: words, colours, HTML, charts."""
