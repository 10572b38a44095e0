"""Parts that several displays share: safe text, HTML, style sheets, charts."""
